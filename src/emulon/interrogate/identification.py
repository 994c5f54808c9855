"""What `identify` found: references from the nearest to the farthest, and whether the nearest is near."""

from __future__ import annotations

from dataclasses import dataclass

from emulon.interrogate.interval import Interval
from emulon.interrogate.reference import Parameters

NONE = "none of these"


@dataclass(frozen=True)
class Match:
    """A reference with the parameters that bring it nearest, and the fraction of the predictor it leaves unexplained.

    `parameters` were fitted on half of the datasets, `unexplained` was measured on the other half.
    """

    name: str
    parameters: Parameters
    unexplained: Interval

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value:.4g}" for name, value in self.parameters.items())
        return f"{self.name}({inside})" if inside else self.name


@dataclass(frozen=True)
class Identification:
    """The ranking, the nearest first, and the verdict.

    `limit` is how much may be left unexplained for the nearest to be named. `ties` are the references that these
    datasets do not tell from the nearest: there the one with the fewest fitted parameters comes first.
    """

    ranking: tuple[Match, ...]
    ties: tuple[str, ...]
    limit: float
    counts: tuple[int, ...]
    datasets: int

    @property
    def nearest(self) -> Match:
        return self.ranking[0]

    @property
    def found(self) -> bool:
        """Whether the nearest is near, the upper end of its interval included."""
        return self.nearest.unexplained.high <= self.limit

    @property
    def algorithm(self) -> str:
        """The name of the nearest reference, or "none of these"."""
        return self.nearest.name if self.found else NONE

    @property
    def parameters(self) -> Parameters:
        return self.nearest.parameters if self.found else {}

    def __getitem__(self, name: str) -> Match:
        for match in self.ranking:
            if match.name == name:
                return match
        raise KeyError(f"no reference called {name!r}; there are {[match.name for match in self.ranking]}")

    def __str__(self) -> str:
        if not self.found:
            return (
                f"{NONE}: the nearest, {self.nearest}, leaves {self.nearest.unexplained} of the predictor unexplained; "
                f"it would be named up to {self.limit:.3g}"
            )
        alike = f"; indistinguishable from {', '.join(str(self[name]) for name in self.ties)}" if self.ties else ""
        return f"{self.nearest}: unexplained {self.nearest.unexplained}{alike}"
