"""Audits and certificates are about the module as it is written, not about its layers rounded to float64."""

import math
import os
from dataclasses import replace

import judge
import pytest
import random_networks
import torch
from small_networks import random, trained_norm, unchecked
from torch import nn

from emulon import compile_network
from emulon.certify.balls import Ball
from emulon.core.errors import EmulonError, OutOfDomain
from emulon.networks import Heads
from emulon.networks.arithmetic import BALLS
from emulon.networks.builder import lower
from emulon.networks.program import distance_by_arb

f64 = torch.float64


# Some of every kind for which little has to be searched; EMULON_RANDOM_NETWORKS=300 judges so many.
QUICK = (0, 2, 4, 5, 7, 8, 13, 15, 19, 20, 21, 24, 25, 31, 33, 36, 39, 43)
COUNT = os.environ.get("EMULON_RANDOM_NETWORKS")


@pytest.mark.parametrize("seed", range(int(COUNT)) if COUNT else QUICK)
def test_a_random_network_keeps_its_bounds_or_is_refused(seed):
    case = random_networks.drawn(seed)
    x = case.x[:2]
    with torch.no_grad():
        plain = case.module(x)
    off = judge.error(case.module, x, plain)
    assert math.isnan(off) or off <= 1e-11 * (1 + plain.abs().max().item())
    try:
        with unchecked():
            run = random_networks.compiled(case)(x)
            promised = min(run.audit.bound, run.certificate.bound)
    except EmulonError as refusal:
        assert "\n" not in str(refusal)
        return
    error = judge.error(case.module, x, run.outputs)
    assert math.isnan(error) or error <= promised
    assert judge.error(case.module, x, run.outputs + 1.0) == pytest.approx(1.0, rel=1e-6)


ROUNDED = {
    "a mean of three": lambda: (nn.LayerNorm(3, elementwise_affine=False).double(), random(6, 3)),
    "a mean of seven squares": lambda: (nn.RMSNorm(7, eps=1e-5).double(), random(6, 7)),
    "trained statistics": trained_norm,
    "a third, less a tenth": lambda: (random_networks.Residual(nn.Linear(2, 2).double()), random(6, 2)),
    "a scale of heads": lambda: (Heads(*random(3, 1, 2, 3).unbind(), scale=2.0), random(4, 3, 3)),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_an_audit_is_no_less_than_the_error_of_the_module_as_written(name):
    """The interpreter's own answers are replaced by float64's: what is left is what rounding the weights did."""
    torch.manual_seed(0)
    module, x = ROUNDED[name]()
    run = compile_network(module, data=x)(x)
    assert judge.error(module, x, run.outputs) <= run.audit.bound <= run.certificate.bound < 1e-5
    close = replace(run, register=run.program.exact(x).reshape(run.register.shape))
    error = judge.error(module, x, close.outputs)
    assert 0 < error <= close.audit.bound <= 1.01 * error and error < 1e-13


def one_function(function: nn.Module) -> nn.Sequential:
    linear = nn.Linear(1, 1).double()
    linear.weight.data, linear.bias.data = torch.ones(1, 1, dtype=f64), torch.zeros(1, dtype=f64)
    return nn.Sequential(linear, function)


@pytest.mark.parametrize(("function", "size"), [(nn.Sigmoid(), 400.0), (nn.Tanh(), 1e5)])
@pytest.mark.parametrize("by", ["data", "domain"])
def test_functions_are_compiled_on_long_ranges(function, size, by):
    module, x = one_function(function), torch.linspace(-size, size, 9, dtype=f64).unsqueeze(-1)
    run = compile_network(module, tolerance=0.01, **{"data": {"data": x}, "domain": {"domain": size}}[by])(x)
    assert judge.error(module, x, run.outputs) <= run.audit.bound <= run.certificate.bound < 10


def test_a_slope_that_is_not_known_is_said():
    with pytest.raises(OutOfDomain, match=r"1 mish: no bound on the slope of .* was found"):
        compile_network(one_function(nn.Mish()), 1e5)


def test_a_softplus_is_compiled_on_one_side_of_its_threshold():
    """PyTorch's is t itself above 20, a jump of 2e-9."""
    x = torch.linspace(-30, 30, 5, dtype=f64).unsqueeze(-1)
    with unchecked(), pytest.raises(EmulonError, match="a network with jumps is not compiled"):
        compile_network(one_function(nn.Softplus()), data=x)
    layer = replace(lower(one_function(nn.Softplus()), (1,)).layers[-1], reads=(0,))
    above = layer.evaluate(Ball.of(torch.tensor([20.5], dtype=f64)), BALLS)
    assert (above.high, above.radius) == (20.5, 0.0)
    assert distance_by_arb([layer], x[-1:, None], x[-1:, None]) == 0.0


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_norms_of_data_of_any_size(scale):
    """The products in a norm have factors of about one size: of c and 1/s, the squares would leave nothing of c."""
    module, x = nn.LayerNorm(4, eps=1e-12 * min(scale, 1.0) ** 2).double(), scale * random(20, 4)
    run = compile_network(module, data=x)(x)
    assert judge.error(module, x, run.outputs) <= run.audit.bound < 1e-10
