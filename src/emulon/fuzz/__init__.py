"""Random cases of everything that promises something, with Arb as the judge: `emulon fuzz`."""

from emulon.fuzz.audits import Auditing
from emulon.fuzz.campaign import Campaign, Counts, Failure, for_minutes, rows_of
from emulon.fuzz.functions import Approximating, HeadEmulating, LinearMapping, Reading, ResidualMapping
from emulon.fuzz.kind import Kind, Outcome, Undecided, Values, Violation, check, kind_named, tried
from emulon.fuzz.learning import Descending, Interpreted, Stepping
from emulon.fuzz.solvers import Looped, Machine

__all__ = [
    "Approximating",
    "Auditing",
    "Campaign",
    "Counts",
    "Descending",
    "Failure",
    "HeadEmulating",
    "Interpreted",
    "Kind",
    "LinearMapping",
    "Looped",
    "Machine",
    "Outcome",
    "Reading",
    "ResidualMapping",
    "Stepping",
    "Undecided",
    "Values",
    "Violation",
    "check",
    "for_minutes",
    "kind_named",
    "rows_of",
    "tried",
]
