"""Audits and certificates are about the module as it is written, not about its layers rounded to float64."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import judge
import pytest
import random_networks
import torch
from small_networks import random
from torch import nn

from emulon import compile_network
from emulon.certify.balls import Ball
from emulon.core.errors import EmulonError, OutOfDomain
from emulon.interpreter import BadFile
from emulon.interpreter.files import read_sealed, write_sealed
from emulon.networks import Heads, load_network, save_network
from emulon.networks.arithmetic import BALLS
from emulon.networks.builder import lower
from emulon.networks.program import distance_by_arb

f64 = torch.float64


def test_random_networks_keep_their_promises():
    """EMULON_RANDOM_NETWORKS=300 judges so many; otherwise a few of every kind."""
    count = os.environ.get("EMULON_RANDOM_NETWORKS", "")
    script = Path(random_networks.__file__)
    ran = subprocess.run([sys.executable, str(script), *([count] if count else [])], capture_output=True, text=True)
    assert ran.returncode == 0, "\n".join(ran.stdout.splitlines()[-3:]) + ran.stderr


@pytest.mark.parametrize("seed", [0, 5, 8, 19, 25, 47, 67])
def test_the_judge_agrees_with_pytorch(seed):
    case = random_networks.drawn(seed)
    with torch.no_grad():
        outputs = case.module(case.x[:2])
    off = judge.error(case.module, case.x[:2], outputs)
    assert off <= 1e-11 * (1 + outputs.abs().max().item())
    assert judge.error(case.module, case.x[:2], outputs + 1e-3) == pytest.approx(1e-3, rel=1e-6)


def with_statistics(module: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    module.running_mean.normal_()
    module.running_var.uniform_(0.1, 3.0)
    return module.double().eval()


ROUNDED = {
    "a mean of three": lambda: (nn.LayerNorm(3, elementwise_affine=False).double(), random(6, 3)),
    "a mean of seven squares": lambda: (nn.RMSNorm(7, eps=1e-5).double(), random(6, 7)),
    "trained statistics": lambda: (with_statistics(nn.BatchNorm1d(3)), random(6, 3)),
    "a mean of nine pixels": lambda: (nn.AvgPool2d(3, 1, 1, count_include_pad=False), random(4, 1, 4, 4)),
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


def network_with_all() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    heads = Heads(*random(3, 1, 2, 3).unbind(), scale=3.0)
    return nn.Sequential(nn.LayerNorm(3), heads, nn.Linear(2, 3), nn.Softplus()).double(), random(5, 3, 3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    module, x = network_with_all()
    program, path = compile_network(module, data=x), tmp_path_factory.mktemp("as_written") / "network.safetensors"
    save_network(program, path)
    return program, path


def test_a_file_keeps_the_module_as_written(saved):
    (program, path), (module, x) = saved, network_with_all()
    again = load_network(path)
    assert again.certificate == program.certificate and again(x).audit == program(x).audit
    assert judge.error(module, x, again(x).outputs) <= again(x).audit.bound
    assert again.layers[-1].f.endswith("t <= (20)), (t, True))")


@pytest.mark.parametrize("what", ["numerators", "squares", "most", "scale"])
def test_a_file_that_says_another_module_is_not_believed(saved, tmp_path, what):
    tensors, facts = read_sealed(saved[1], "network")
    at = next(k for k, phase in enumerate(facts["layers"]) if phase["kind"] == "Attention")
    if what == "most":
        facts["layers"][-1]["layer"]["most"] = 0.5
    elif what == "scale":
        facts["layers"][at]["layer"]["scale"] = -1.0
    else:
        name = f"network.layers.0.layer.unrounded.{what}"
        tensors[name] = 1.5 * tensors[name]
    write_sealed(tmp_path / "lie.safetensors", "network", tensors, facts)
    with pytest.raises(BadFile, match="compile it again"):
        load_network(tmp_path / "lie.safetensors")


def one_function(function: nn.Module) -> nn.Sequential:
    linear = nn.Linear(1, 1).double()
    linear.weight.data, linear.bias.data = torch.ones(1, 1, dtype=f64), torch.zeros(1, dtype=f64)
    return nn.Sequential(linear, function)


@pytest.mark.parametrize(("function", "size"), [(nn.Sigmoid(), 400.0), (nn.Tanh(), 1e5)])
@pytest.mark.parametrize("by", ["data", "domain"])
def test_functions_are_compiled_on_long_ranges(function, size, by):
    module, x = one_function(function), torch.linspace(-size, size, 9, dtype=f64).unsqueeze(-1)
    where = {"data": x} if by == "data" else {"domain": size}
    program = compile_network(module, tolerance=0.01, **where)
    run = program(x)
    assert judge.error(module, x, run.outputs) <= run.audit.bound <= run.certificate.bound < 10


def test_a_slope_that_is_not_known_is_said():
    with pytest.raises(OutOfDomain, match=r"1 mish: no bound on the slope of .* was found"):
        compile_network(one_function(nn.Mish()), 1e5)


def test_a_softplus_is_compiled_on_one_side_of_its_threshold():
    """PyTorch's is t itself above 20, a jump of 2e-9."""
    x = torch.linspace(-30, 30, 5, dtype=f64).unsqueeze(-1)
    with pytest.raises(EmulonError, match="a network with jumps is not compiled"):
        compile_network(one_function(nn.Softplus()), data=x)
    layer = replace(lower(one_function(nn.Softplus()), (1,)).layers[-1], reads=(0,))
    above = layer.evaluate(Ball.of(torch.tensor([20.5], dtype=f64)), BALLS)
    assert (above.high, above.radius) == (20.5, 0.0)
    assert distance_by_arb([layer], x[-1:, None], x[-1:, None]) == 0.0


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3])
def test_norms_of_data_of_any_size(scale):
    """The products in a norm have factors of about one size: of c and 1/s, the squares would leave nothing of c."""
    module, x = nn.LayerNorm(4, eps=1e-12 * min(scale, 1.0) ** 2).double(), scale * random(20, 4)
    run = compile_network(module, data=x)(x)
    assert judge.error(module, x, run.outputs) <= run.audit.bound < 1e-10
