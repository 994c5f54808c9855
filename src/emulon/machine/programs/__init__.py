"""Learning algorithms as programs: one file each."""

from emulon.machine.programs.batch_gradient_descent import batch_gradient_descent
from emulon.machine.programs.clipped_sgd import clipped_sgd
from emulon.machine.programs.copies import last_value, nearest_average
from emulon.machine.programs.momentum import momentum
from emulon.machine.programs.moving_average import moving_average
from emulon.machine.programs.sgd import sgd
from emulon.machine.programs.sherman_morrison import sherman_morrison

__all__ = [
    "batch_gradient_descent",
    "clipped_sgd",
    "last_value",
    "momentum",
    "moving_average",
    "nearest_average",
    "sgd",
    "sherman_morrison",
]
