"""AlgoFormer."""
