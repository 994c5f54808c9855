"""Other people's models behind the one call: Hugging Face causal models, and the checkpoints of Garg et al. 2022."""

from emulon.identification.adapters.garg import GargLearner, convert, load_garg
from emulon.identification.adapters.hugging_face import TextPredictor, load_checkpoint

__all__ = ["GargLearner", "TextPredictor", "convert", "load_checkpoint", "load_garg"]
