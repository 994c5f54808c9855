"""Learning algorithms as programs."""

from emulon.machine.programs.averages import last_value, moving_average, nearest_average
from emulon.machine.programs.elimination import ridge_elimination
from emulon.machine.programs.sgd import batch_gradient_descent, clipped_sgd, momentum, sgd
from emulon.machine.programs.sherman_morrison import sherman_morrison

__all__ = [
    "batch_gradient_descent",
    "clipped_sgd",
    "last_value",
    "momentum",
    "moving_average",
    "nearest_average",
    "ridge_elimination",
    "sgd",
    "sherman_morrison",
]
