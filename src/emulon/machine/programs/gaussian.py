"""The domain a program gets when none is given: wide enough for standard normal inputs and weights."""

from __future__ import annotations

import math

from emulon.certify import Domain, Spectrum

BEYOND = 4.0


def gaussian(features: int, samples: int) -> Domain:
    """Bounds on |x|, |y| and |w| in every entry, and on ‖x‖₂.

    A standard normal vector is longer than √d + 4 with probability below 6e-7 (d = 1; less for larger d), and
    targets w·x are below that length squared. Iterates may be twice as long as w. Data outside are refused: then
    pass a wider `domain`.
    """
    norm = math.sqrt(features) + BEYOND
    return Domain(samples, features, x=norm, y=norm**2, w=2 * norm, spectrum=Spectrum(norm=norm))
