"""Learners: transformers that have to find the algorithm themselves. All of them are predictors."""

from emulon.models.block import Affine, Block, BlockShape, Decoder, SelfAttention
from emulon.models.decoders import AlgoFormer, Looped, Standard
from emulon.models.learner import Learner

__all__ = ["Affine", "AlgoFormer", "Block", "BlockShape", "Decoder", "Learner", "Looped", "SelfAttention", "Standard"]
