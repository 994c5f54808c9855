"""Other people's models as predictors: modules of PyTorch here, language models in `hugging_face`, runs of public codes
in `checkpoints`."""

from emulon.identification.adapters.modules import LAYOUTS, ModulePredictor, adapt

__all__ = ["LAYOUTS", "ModulePredictor", "adapt"]
