"""Tables of real data: read, recognised column by column, made into matrices, and kept beside a fitted model."""

from emulon.tables.columns import DATASETS, BadData, read_columns
from emulon.tables.data import Data, load, load_each
from emulon.tables.model import FittedModel, load_models, save_models

__all__ = ["DATASETS", "BadData", "Data", "FittedModel", "load", "load_each", "load_models", "read_columns"]
__all__ += ["save_models"]
