"""Learning algorithms as programs."""

from emulon.machine.programs.examples import moving_average
from emulon.machine.programs.ridge import sherman_morrison
from emulon.machine.programs.sgd import batch_gradient_descent, sgd

__all__ = ["batch_gradient_descent", "moving_average", "sgd", "sherman_morrison"]
