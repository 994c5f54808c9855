"""Learners: transformers that have to find the algorithm themselves. All of them are predictors."""

from emulon.models.block import Affine, Block, BlockShape, Decoder, SelfAttention
from emulon.models.learner import AlgoFormer, Learner, Looped, Standard

__all__ = ["Affine", "AlgoFormer", "Block", "BlockShape", "Decoder", "Learner", "Looped", "SelfAttention", "Standard"]
