"""Random cases of everything that states a bound, with Arb as the judge: `python -m fuzz --minutes 30`.

Each kind is a hypothesis property; cases shrink and are kept for replay in `.hypothesis/`. `--seed` decides the cases,
`--only` names kinds. Exit code 1: a bound that did not hold, or an error that is no refusal.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from fuzz import functions, learning, solvers
from fuzz.oracle import Case, Violation, verdict

VERDICTS = ("held", "refused", "undecided")
# Processor seconds after which a case counts as hanging.
PATIENCE = 60


@dataclass(frozen=True)
class Kind:
    cases: st.SearchStrategy[Case]
    check: Callable[[Case], None]
    examples: int = 20  # a round


KINDS = {
    "approximation": Kind(functions.approximations(), functions.check_approximation, 60),
    "text": Kind(functions.texts(), functions.check_text, 60),
    "residual map": Kind(functions.residual_maps(), functions.check_residual_map, 40),
    "linear layer": Kind(functions.linear_layers(), functions.check_linear_layer),
    "head": Kind(functions.heads(), functions.check_head),
    "program": Kind(learning.programs(), learning.check_program, 60),
    "descent": Kind(learning.descents(), learning.check_descent, 40),
    "gradient step": Kind(learning.gradient_steps(), learning.check_gradient_step),
    "looped": Kind(solvers.loops(), solvers.check_loop),
    "machine": Kind(solvers.machines(), solvers.check_machine),
    "audit": Kind(solvers.audits(), solvers.check_audit, 400),
}


@contextmanager
def time_limit() -> Any:
    """Raises `TimeoutError` in a case that hangs, where the system has the signal (not on Windows)."""

    def hangs(*_: Any) -> None:
        raise TimeoutError(f"a case takes more than {PATIENCE} seconds")

    if not hasattr(signal, "SIGPROF"):
        yield
        return
    before = signal.signal(signal.SIGPROF, hangs)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def try_cases(name: str, kind: Kind, seed: int, end: float = math.inf) -> tuple[Counter[str], list[Exception]]:
    """One round of a kind, until the clock says `end`: its verdicts, and failures that hypothesis has made small."""
    counts: Counter[str] = Counter()
    failing = False

    def case_holds(case: Case) -> None:
        nonlocal failing
        if time.monotonic() > end and not failing:
            return
        try:
            with time_limit():
                outcome = verdict(kind.check, case)
        except BaseException:
            failing = True
            raise
        counts[outcome] += not failing  # attempts at smaller cases are not counted

    case_holds.__name__ = name.replace(" ", "_")  # hypothesis keys its database by it
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    options = hypothesis.settings(
        max_examples=kind.examples, deadline=None, phases=phases, suppress_health_check=list(HealthCheck)
    )
    try:
        hypothesis.seed(seed)(options(given(case=kind.cases)(case_holds)))()
    except ExceptionGroup as group:
        return counts, list(group.exceptions)
    except Exception as error:
        return counts, [error]
    return counts, []


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
    failures: dict[tuple[str, str], Exception] = {}
    for number in range(options.rounds):
        for name in options.only:
            if time.monotonic() > end:
                break
            found, errors = try_cases(name, KINDS[name], 1000 * options.seed + number, end)
            counts[name] += found
            for error in errors:
                key = (name, type(error).__name__)
                if key not in failures:
                    failures[key] = error
                    print("\n".join([f"{name}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ())]))
        if time.monotonic() > end:
            break
    for name, found in counts.items():
        print(f"{name:14}", *(f"{found[one]:7} {one}" for one in VERDICTS))
    violations = sum(isinstance(error, Violation) for error in failures.values())
    cases = sum(found.total() for found in counts.values()) + len(failures)
    print(f"seed {options.seed}: {cases} cases, {violations} violations, {len(failures) - violations} tracebacks")
    return 1 if failures else 0


if __name__ == "__main__":
    # A process that is killed at its end would lose nothing: what it compiled it leaves in its own cache.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
