"""Weights are changed by changing the prompt."""

import copy

import pytest
import torch

from emulon.core.errors import BadShape, EmulonError, OutOfDomain
from emulon.networks import Heads, compile_network


def test_a_low_rank_update_in_the_prompt_is_the_one_in_pytorch(cases, interpreter):
    case, before = cases["tanh"], interpreter.sha256
    torch.manual_seed(5)
    left, right = (torch.randn(size, 2, dtype=torch.float64) / 8 for size in (6, 7))
    other = copy.deepcopy(case.network)
    with torch.no_grad():
        other[2].weight += left @ right.T
        wanted = other(case.x)
    edited = case.program.with_weights("2", weight=other[2].weight)
    run = interpreter.run(edited, case.x)
    assert (run.outputs - wanted).abs().max() <= 1e-9 and run.audit.bound <= 1e-9
    assert (wanted - case.wanted).abs().max() > 1e-2 and run.sha256 == (before, before)
    assert torch.equal(case.program.layers[2].weight, case.network[2].weight)


def test_two_heads_are_exchanged_by_prompt():
    torch.manual_seed(0)
    one, other = ([torch.randn(1, 2, 3, dtype=torch.float64) / 2 for _ in range(3)] for _ in range(2))
    x = torch.randn(4, 3, 3, dtype=torch.float64)
    program = compile_network(Heads(*one), data=torch.cat([x, 1.5 * x]))
    switched = program.with_weights("0 attention", **dict(zip(("w_q", "w_k", "w_v"), other, strict=True)), data=x)
    assert (switched(x).outputs - Heads(*other)(x)).abs().max() <= 1e-9
    assert (program(x).outputs - Heads(*one)(x)).abs().max() <= 1e-9


def test_an_edit_that_leaves_the_ranges_is_refused_by_the_run_or_given_data(cases):
    case = cases["tanh"]
    weight = 10 * case.program.layers[0].weight
    with pytest.raises(OutOfDomain, match="0 0 linear"):
        case.program.with_weights("0", weight=weight)(case.x)
    assert case.program.with_weights("0", weight=weight, data=case.x)(case.x).audit.bound < 1e-9


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"layer": "9", "weight": torch.zeros(7, 5)}, EmulonError, "no layer of Sequential at '9' with weight"),
        ({"layer": "0", "weight": torch.zeros(2, 2)}, BadShape, r"has shape \(7, 5\), and is given \(2, 2\)"),
        ({"layer": "0", "weight": torch.full((7, 5), torch.nan)}, OutOfDomain, "contains NaN"),
        ({"layer": "0"}, EmulonError, "no layer"),
    ],
)
def test_a_bad_edit_is_refused(cases, arguments, error, message):
    with pytest.raises(error, match=message):
        cases["tanh"].program.with_weights(**arguments)


def test_a_program_stays_as_it_was_when_its_module_is_trained_further():
    network, x = torch.nn.Linear(2, 2).double(), torch.ones(1, 2, dtype=torch.float64)
    program = compile_network(network, 1.0)
    before = program(x).outputs
    network.weight.data.mul_(2)
    network.bias.data.add_(1)
    assert torch.equal(program(x).outputs, before)
