"""Each instruction alone, over its whole domain, in every network."""

from __future__ import annotations

import random

import pytest
import torch
from machine_cases import CASES, NETWORKS, Case


def errors(case: Case, network: str, batch: int) -> tuple[float, float, float]:
    """(the largest error, the largest exact result, the certificate), on draws and on corners of the domain."""
    run, dtype, _ = NETWORKS[network]
    program, worst, largest, bound = case.program(), 0.0, 0.0, 0.0
    target = program.output.name
    for corners in (False, True):
        inputs = case.draw(batch, dtype, corners=corners)
        held, certificates = run(program, inputs, dtype)
        exact = case.exact(**{name: values.double() for name, values in inputs.items()})
        worst = max(worst, certificates[target].verify(held[target], exact))
        largest, bound = max(largest, exact.abs().max().item()), certificates[target].bound
    return worst, largest, bound


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_error_is_small_and_below_the_certificate(case: Case, network: str) -> None:
    torch.manual_seed(0)
    wanted = NETWORKS[network][2] * (10 if case.name == "div" else 1)
    worst, largest, bound = errors(case, network, 40)
    print(f"{case.name:20s} {network} relative {worst / largest:.1e}, certified {bound / largest:.1e}")
    assert worst <= wanted * largest
    if case.name in ("dot", "mul", "div"):
        assert bound <= 10 * wanted * largest


@pytest.mark.parametrize("seed", range(22))
def test_domains_of_other_sizes_never_break_the_certificate(seed: int) -> None:
    """Registers of very different sizes beside each other; where a match is made for one size, it is left out."""
    torch.manual_seed(seed)
    cases = [case for case in CASES if "alike" not in case.name and "clip" not in case.name]
    case, network = cases[seed % len(cases)].scaled(random.Random(seed)), list(NETWORKS)[seed % 2]
    worst, largest, _ = errors(case, network, 40)
    assert worst <= 10 * NETWORKS[network][2] * largest


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_instruction_is_one_layer(case: Case) -> None:
    """div's case has an aff before it, whose result its attention reads."""
    program = case.program()
    assert program.compile().depth == len(program.instructions) == (2 if case.name == "div" else 1)
