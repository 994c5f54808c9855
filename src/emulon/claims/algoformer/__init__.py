"""Claims of `002_…`, AlgoFormer."""
