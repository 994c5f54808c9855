"""Learners: transformers that have to find the algorithm themselves. All of them are predictors."""

from emulon.models.algoformer import AlgoFormer
from emulon.models.block import Affine, Block, Decoder, SelfAttention
from emulon.models.frozen_attention import FrozenAttention
from emulon.models.learner import Learner
from emulon.models.looped import Looped
from emulon.models.standard import Standard

LEARNERS: dict[str, type[Learner]] = {
    "standard": Standard,
    "looped": Looped,
    "algoformer": AlgoFormer,
    "frozen": FrozenAttention,
}

__all__ = [
    "LEARNERS",
    "Affine",
    "AlgoFormer",
    "Block",
    "Decoder",
    "FrozenAttention",
    "Learner",
    "Looped",
    "SelfAttention",
    "Standard",
]
