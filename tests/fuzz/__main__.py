"""Random cases with Arb as the judge: `python -m fuzz --minutes 30`.

Each kind is a hypothesis property; cases shrink and are kept for replay in `.hypothesis/`. `--seed` decides the cases,
`--only` names kinds. Exit code 1: a bound that did not hold, or an error that is no refusal.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import product

import hypothesis
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from fuzz import functions, learning, solvers
from fuzz.oracle import Case, Violation, verdict

# Strategy of its cases, the check, and how many cases a round has.
Kind = tuple[st.SearchStrategy[Case], Callable[[Case], None], int]
KINDS: dict[str, Kind] = {
    "approximation": (functions.approximations(), functions.check_approximation, 60),
    "text": (functions.texts(), functions.check_text, 60),
    "residual map": (functions.residual_maps(), functions.check_residual_map, 40),
    "program": (learning.programs(), learning.check_program, 60),
    "descent": (learning.descents(), learning.check_descent, 40),
    "looped": (solvers.loops(), solvers.check_loop, 20),
    "machine": (solvers.machines(), solvers.check_machine, 20),
}
OPTIONS = {"deadline": timedelta(minutes=1), "report_multiple_bugs": False, "suppress_health_check": list(HealthCheck)}


def try_cases(name: str, seed: int) -> tuple[Counter[str], Exception | None]:
    """One round of a kind: its verdicts, and a failure that hypothesis has made small."""
    cases, check, examples = KINDS[name]
    counts: Counter[str] = Counter()

    def case_holds(case: Case) -> None:
        counts[verdict(check, case)] += 1

    case_holds.__name__ = name.replace(" ", "_")  # hypothesis keys its database by it
    try:
        hypothesis.seed(seed)(hypothesis.settings(max_examples=examples, **OPTIONS)(given(case=cases)(case_holds)))()
    except Exception as error:
        return counts, error
    return counts, None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10**6, help="at most so many rounds of every kind")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # thousands of tiny tensors: threads would only wait for each other
    end = time.monotonic() + 60 * options.minutes
    counts: dict[str, Counter[str]] = {name: Counter() for name in options.only}
    failed: dict[str, Exception] = {}
    for number, name in product(range(options.rounds), options.only):
        if time.monotonic() > end:
            break
        if name not in failed:
            found, error = try_cases(name, 1000 * options.seed + number)
            counts[name] += found
            if error is not None:
                failed[name] = error
                print("\n".join([f"{name}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ())]))
    for name, found in counts.items():
        print(f"{name:14}", *(f"{found[one]:7} {one}" for one in ("held", "refused", "undecided")))
    violations = sum(isinstance(error, Violation) for error in failed.values())
    cases = sum(found.total() for found in counts.values())
    print(f"seed {options.seed}: {cases} cases, {violations} violations, {len(failed) - violations} tracebacks")
    return 1 if failed else 0


if __name__ == "__main__":
    # A process that is killed at its end would lose nothing: what it compiled it leaves in its own cache.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
