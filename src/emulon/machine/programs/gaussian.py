"""The domain a program gets when none is given: standard normal inputs and weights, six deviations wide."""

from __future__ import annotations

import math

from emulon.certify import Domain

DEVIATIONS = 6.0


def gaussian(features: int, samples: int) -> tuple[Domain, float]:
    """Bounds on |x|, |y| and |w| in every entry, and on ‖x‖₂.

    A standard normal vector is longer than √d + 6 with probability below e⁻¹⁸; targets w·x are shorter than that squared.
    Iterates may be twice as long as w. Data outside are refused when they come; then pass a wider `domain`.
    """
    norm = math.sqrt(features) + DEVIATIONS
    return Domain(samples, features, x=min(DEVIATIONS, norm), y=norm**2, w=2 * norm), norm


def domain_of(features: int, samples: int, domain: Domain | None, norm: float | None) -> tuple[Domain, float]:
    """The given domain, or the Gaussian one; `norm` bounds ‖x‖₂ and is √features·x where only a domain is given."""
    if domain is None:
        domain, default = gaussian(features, samples)
    else:
        default = math.sqrt(features) * domain.x
    return domain, min(math.sqrt(features) * domain.x, default if norm is None else norm)
