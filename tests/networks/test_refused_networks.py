"""What cannot be compiled, or run, is refused in one line that names the part."""

import pytest
import torch
from torch import nn

from emulon import compile_network
from emulon.core.errors import BadNetwork, BadShape, EmulonError, OutOfDomain


def with_nan() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 2))
    with torch.no_grad():
        network[0].weight[0, 0] = torch.nan
    return network


BAD = {
    "0.1 is in training mode": nn.Sequential(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))),
    "a LSTM at 1 is not compiled": nn.Sequential(nn.Linear(3, 2), nn.LSTM(2, 2)),
    "weight of 0 contains NaN": with_nan(),
    "takes 4 features and is given 2": nn.Sequential(nn.Linear(3, 2), nn.Linear(4, 1)),
    "no layer that computes anything": nn.Sequential(),
    "BatchNorm is in training mode": nn.BatchNorm1d(3),
}


@pytest.mark.parametrize("message", BAD)
def test_a_network_is_refused_by_name(message):
    with pytest.raises(EmulonError, match=message.replace("(", r"\(")) as refusal:
        compile_network(BAD[message], 1.0, shape=(3,))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a domain, or data"),
        ({"domain": 1.0, "data": torch.zeros(2, 3)}, "and not both"),
        ({"domain": (2.0, 1.0)}, "empty or not finite"),
        ({"domain": 1.0, "tolerance": 0.0}, "tolerance must be positive"),
        ({"data": torch.full((2, 3), torch.inf)}, "data contains NaN or infinity"),
        ({"data": torch.zeros(2, 2, 2, 2)}, "put a Flatten before it"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(EmulonError, match=message):
        compile_network(nn.Linear(3, 2), **options)


def test_what_is_no_network_is_refused():
    with pytest.raises(BadNetwork, match="a dict is no network"):
        compile_network({}, 1.0)


def test_a_run_refuses_what_leaves_its_ranges(cases, interpreter):
    case = cases["tanh"]
    with pytest.raises(OutOfDomain, match="x reaches from"):
        interpreter.run(case.program, 10 * case.x)
    # Inputs that are each in range, and together drive the first layer out of its own.
    theta = case.program.layers[0].weight
    driven = min(-case.program.box.ends[0], case.program.box.ends[1]) * theta[theta.abs().sum(dim=-1).argmax()].sign()
    with pytest.raises(OutOfDomain, match="0 0 linear gives numbers"):
        interpreter.run(case.program, driven[None])


def test_a_run_refuses_other_shapes_and_targets(cases, interpreter):
    case = cases["tanh"]
    with pytest.raises(BadShape, match=r"Sequential reads \(…, 5\)"):
        interpreter.run(case.program, case.x[:, :4])
    with pytest.raises(EmulonError, match="leave y out"):
        interpreter.run(case.program, case.x, case.x[:, 0])
