"""Learning algorithms as programs: one file each."""

from emulon.machine.programs.batch_gradient_descent import batch_gradient_descent
from emulon.machine.programs.moving_average import moving_average
from emulon.machine.programs.sgd import sgd
from emulon.machine.programs.sherman_morrison import sherman_morrison

__all__ = ["batch_gradient_descent", "moving_average", "sgd", "sherman_morrison"]
