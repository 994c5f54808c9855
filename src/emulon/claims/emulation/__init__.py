"""Claims of `004_…`, In-Context Algorithm Emulation in Fixed-Weight Transformers."""
