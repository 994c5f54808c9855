"""The terms of every certificate, as recorded in `bounds.json`: one changed term of a formula fails here.

`python tests/machine/test_machine_bounds.py` writes the record anew (see `tests/recorded.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from machine_cases import CASES, every_operator
from recorded import require_as_recorded, write

from emulon.certify import Certificate, Domain, Spectrum
from emulon.machine import Invariant, RegisterProgram
from emulon.machine.compiler import planned
from emulon.machine.error import LocalError, certify
from emulon.machine.programs import sgd, sherman_morrison
from emulon.machine.programs.examples import Examples
from emulon.machine.programs.ridge import elimination_steps
from emulon.machine.targets.llama_registers import plan_llama

f32, f64 = torch.float32, torch.float64
RECORD = Path(__file__).with_name("bounds.json")
DOMAIN = Domain(4, 2, x=1.0, y=1.0, w=4.0, spectrum=Spectrum(norm=1.0))
DESCENT = {"domain": DOMAIN, "ridge": 0.1, "initial": torch.tensor([0.5, 0.3])}


def elimination() -> RegisterProgram:
    examples = Examples.of("elimination", replace(DOMAIN, features=3))
    return examples.program.returns(elimination_steps(examples, 0.3))


PROGRAMS: dict[str, Callable[[], RegisterProgram]] = {
    **{case.name: case.program for case in CASES},
    "every operator": every_operator,
    "sgd": lambda: sgd(2, 4, 0.05, **DESCENT),
    "sherman_morrison": lambda: sherman_morrison(2, 4, domain=DOMAIN),
    "elimination": elimination,
}


def terms(certificates: dict[str, Certificate]) -> dict[str, float]:
    named = {f"{name}: {term}": value for name, one in certificates.items() for term, value in one.terms.items()}
    return {name: value for name, value in named.items() if value}


def of_gpt2(name: str, dtype: torch.dtype, noise: float, beside: float) -> dict[str, float]:
    plan = planned(PROGRAMS[name](), dtype)
    norm = plan.normalisation
    sizes = {"pad": norm.pad, "content": norm.content, "mean": norm.mean}
    return sizes | terms(plan.certificates(noise=noise, skew=noise / 7, beside=beside))


RECORDED = {
    **{
        f"GPT-2, {kind}, {name}": partial(of_gpt2, name, *how)
        for kind, how in {"float64": (f64, 0.0, 0.0), "noise": (f64, 1e-9, 0.5), "float32": (f32, 0.0, 0.0)}.items()
        for name in PROGRAMS
    },
    **{f"Llama, {name}": lambda make=make: terms(plan_llama(make()).certificates()) for name, make in PROGRAMS.items()},
}


@pytest.mark.parametrize("name", RECORDED)
def test_every_term_is_as_recorded(name: str) -> None:
    require_as_recorded(RECORD, name, RECORDED[name](), rel=1e-9)


class Fixed(LocalError):
    """An instruction adds 1."""

    def of(self, instruction, before):
        return {"one": 1.0}


@pytest.mark.parametrize("room, valid, holds", [(1.0, math.inf, True), (0.9, math.inf, False), (9.0, 0.9, False)])
def test_an_error_beyond_its_room_or_its_invariant_promises_nothing(room: float, valid: float, holds: bool) -> None:
    program = RegisterProgram("room", 2)
    program.aff(program.register("a"), 1.0, invariant=Invariant("", growth=0.0, valid=valid))
    known = planned(program, f64)
    local = Fixed(known.normalisation, {}, known.layout.scale, program.here, 3)
    certificate = certify(program, replace(known.analysis, room=[room]), local)["a"]
    assert math.isfinite(certificate.bound) is holds and (certificate.note == "") is holds


if __name__ == "__main__":
    write(RECORD, RECORDED)
