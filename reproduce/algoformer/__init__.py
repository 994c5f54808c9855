"""Claims of Gao et al. 2024, AlgoFormer."""
