"""Claims of Hu et al. 2025, In-Context Algorithm Emulation in Fixed-Weight Transformers."""
