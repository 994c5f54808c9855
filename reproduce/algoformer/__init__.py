"""Claims of Gao et al. 2024, AlgoFormer."""

from reproduce.algoformer import tasks

__all__ = ["tasks"]  # they are registered as soon as any module here is imported
