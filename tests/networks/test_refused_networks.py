"""What cannot be compiled or run is refused in one line that names the part; the rest is compiled as what it computes.

Modules that look like known parts and compute something else are among it, some only far from a few points.
"""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from emulon import compile_network
from emulon.core.errors import BadNetwork, BadShape, EmulonError, OutOfDomain
from emulon.models import Standard
from emulon.models.block import Block, BlockShape
from emulon.networks import Expression, Heads

f64 = torch.float64
FAR = 0.9


class HiddenSequential(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + (x.abs().amax(dim=-1, keepdim=True) > FAR)


class HiddenLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1 + (x.abs().amax() > FAR))


class DoubleSequential(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Called(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def __call__(self, x):
        return self.forward(x) + 1

    def forward(self, x):
        return self.inner(x)


class Wrapped(torch.Tensor):
    """A tensor that multiplies by its double."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [2 * arg.as_subclass(torch.Tensor) if isinstance(arg, cls) else arg for arg in args]
        return function(*plain, **(kwargs or {}))


class ChangedBlock(Block):
    def forward(self, x, visible=None):
        return 2 * super().forward(x, visible)


class ChangedStandard(Standard):
    def states(self, embedded, window=None, visible=None):
        return 2 * super().states(embedded, window, visible)


class Residual(nn.Module):
    """x + relu(x), or relu(x) + relu(x) where the ReLU writes over what it reads."""

    def __init__(self, inplace):
        super().__init__()
        self.inner, self.relu = nn.Linear(3, 3), nn.ReLU(inplace=inplace)

    def forward(self, x):
        h = self.inner(x)
        return self.relu(h) + h


class Functions(nn.Module):
    def __init__(self, what, inner=None):
        super().__init__()
        self.inner, self.what = inner or nn.Linear(3, 3), what

    def forward(self, x):
        return self.what(self.inner(x))


def changed(change=lambda network: None) -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    change(network)
    return network


def encoder(change) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True).double().eval()
    change(layer)
    return layer


def outputs_changed(module, inputs, output):
    return output + (inputs[0].abs().amax() > FAR)


def other_forward(network):
    return lambda x: nn.functional.linear(x, network[0].weight)


def replaced_convolution():
    module = nn.Conv2d(1, 2, 2).double()
    module._conv_forward = lambda x, weight, bias: nn.functional.conv2d(x, 2 * weight, bias)
    return module


def replaced_weight(network):
    network[0]._parameters["weight"] = network[0].weight.detach().as_subclass(Wrapped)


def setting(name, value):
    def change(module):
        *parts, last = name.split(".")
        setattr(functools.reduce(getattr, parts, module), last, value)

    return change


VECTOR, SEQUENCE, TOKENS, IMAGE = (3,), (3, 4), (7, 3), (1, 4, 4)
TRICKS = {
    "a subclass of Sequential": (lambda: HiddenSequential(*changed()), "cannot be followed|not compiled", VECTOR),
    "a subclass of Linear": (lambda: nn.Sequential(HiddenLinear(3, 3)), "in a HiddenLinear reads", VECTOR),
    "a branch": (Branching, "cannot be followed", VECTOR),
    "a hook": (
        lambda: changed(lambda n: n[1].register_forward_hook(outputs_changed)),
        "a Tanh at 1 has forward hooks",
        VECTOR,
    ),
    "a forward of one instance": (
        lambda: changed(lambda n: setattr(n[0], "forward", other_forward(n))),
        "a Linear at 0 has forward replaced",
        VECTOR,
    ),
    "a call of one instance": (
        lambda: changed(lambda n: setattr(n[0], "_call_impl", other_forward(n))),
        "_call_impl replaced",
        VECTOR,
    ),
    "a call of a class": (lambda: Called(), "__call__ replaced", VECTOR),
    "a method that forward uses": (lambda: replaced_convolution(), "_conv_forward replaced", IMAGE),
    "a weight that is more than a tensor": (lambda: changed(replaced_weight), "weight of a Linear at 0 is a W", VECTOR),
    "weight norm": (lambda: changed(lambda n: parametrizations.weight_norm(n[0])), "parametrised", VECTOR),
    "a norm of a transformer": (lambda: encoder(setting("norm2", nn.RMSNorm(4))), "norm2 is not compiled", SEQUENCE),
    "a linear map of a transformer": (lambda: encoder(setting("linear1", HiddenLinear(4, 6))), "linear1 is", SEQUENCE),
    "a hook in a transformer": (
        lambda: encoder(lambda m: m.self_attn.register_forward_hook(outputs_changed)),
        "MultiheadAttention at self_attn has forward hooks",
        SEQUENCE,
    ),
    "one more key": (lambda: encoder(setting("self_attn.add_zero_attn", True)), "more than its positions", SEQUENCE),
    "one dropout in training": (lambda: encoder(lambda m: m.dropout2.train()), "training mode", SEQUENCE),
    "an activation its kernel ignores": (lambda: encoder(setting("activation", nn.Tanh())), "fast kernel", SEQUENCE),
    "an encoder without positions": (lambda: encoder(lambda m: None), "attends between positions", (4,)),
    "a subclass of a block": (
        lambda: ChangedBlock(BlockShape(width=4, heads=2)).double(),
        "changes forward and inherits lower_into",
        SEQUENCE,
    ),
    "a subclass of a learner": (
        lambda: ChangedStandard(3, 1, 7, width=4, heads=2, layers=1).double(),
        "changes states and inherits lower_states",
        TOKENS,
    ),
    "a claim of an instance": (
        lambda: changed(setting("1.lower_into", lambda builder, place: builder.linear(place, "x", torch.eye(4)))),
        "lower_into replaced",
        VECTOR,
    ),
    "what is changed in place": (lambda: Residual(True), "reads what relu changed in place", VECTOR),
    "a flattened batch": (lambda: Functions(torch.flatten, nn.ReLU()), "only a Flatten of all dimensions", IMAGE),
    "dropout in a forward": (lambda: Functions(nn.functional.dropout), "dropout in the forward", VECTOR),
    "a quotient of registers": (lambda: Functions(lambda h: h / h), "divides by what the network computes", VECTOR),
    "a division by zero": (lambda: Functions(lambda h: h / 0), "by no register and not by zero", VECTOR),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_what_computes_something_else_is_refused_by_name(trick):
    make, message, shape = TRICKS[trick]
    torch.manual_seed(0)
    with pytest.raises(BadNetwork, match=message) as refusal:
        compile_network(make(), data=torch.rand(6, *shape, dtype=f64) / 2)
    assert "\n" not in str(refusal.value)


def test_hooks_for_all_modules_are_refused():
    handle = nn.modules.module.register_module_forward_hook(outputs_changed)
    try:
        with pytest.raises(BadNetwork, match="hooks for all modules"):
            compile_network(changed(), 1.0)
    finally:
        handle.remove()
    compile_network(changed(), 1.0)


def test_a_class_whose_forward_was_replaced_is_refused(monkeypatch):
    own = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", functools.wraps(own)(lambda self, x: 2 * own(self, x)))
    with pytest.raises(BadNetwork, match="the forward of Linear is not PyTorch's own"):
        compile_network(changed(), 1.0)


COMPILED = {
    "a subclass that can be followed": lambda: DoubleSequential(*changed()),
    "nothing in place": lambda: Residual(False),
    "in place, and read no more": lambda: Functions(nn.Sequential(nn.ReLU(inplace=True), nn.Tanh())),
    "a slope by position": lambda: Functions(functools.partial(nn.functional.leaky_relu, negative_slope=0.3)),
    "a shift that float32 does not hold": lambda: Functions(lambda h: 0.1 - h),
    "a quotient": lambda: Functions(lambda h: h / -3),
    "a difference": lambda: Functions(lambda h: (h - 0.1) - 2 * torch.sigmoid(h)),
    "a function whose name is kept": lambda: changed(setting("1", Expression("sin(3*t)"))),
    "a scale of heads": lambda: Heads(*(torch.eye(3, dtype=f64).unsqueeze(0) for _ in range(3)), scale=3.0),
}


@pytest.mark.parametrize("name", COMPILED)
def test_what_can_be_followed_is_compiled_as_what_it_computes(name):
    torch.manual_seed(0)
    network = COMPILED[name]().double()
    x = torch.rand(6, 3, dtype=f64) - 0.5
    x = x.unsqueeze(-2).expand(6, 2, 3).contiguous() if isinstance(network, Heads) else x
    run = compile_network(network, data=x)(x)
    wanted = copy.deepcopy(network)(x).detach()
    assert (run.outputs - wanted).abs().max() <= run.audit.bound + 1e-14 < 1e-8


def with_nan() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 2))
    with torch.no_grad():
        network[0].weight[0, 0] = torch.nan
    return network


BAD = [
    (nn.Sequential(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))), "0.1 is in training mode"),
    (nn.Sequential(nn.Linear(3, 2), nn.LSTM(2, 2)), "a LSTM at 1 is not compiled"),
    (with_nan(), "weight of 0 contains NaN"),
    (nn.Sequential(nn.Linear(3, 2), nn.Linear(4, 1)), "takes 4 features and is given 2"),
    (nn.Sequential(), "no layer that computes anything"),
    (nn.BatchNorm1d(3), "BatchNorm is in training mode"),
    (nn.LayerNorm(3), "give data"),
    (nn.LayerNorm(4), r"normalises \(4,\) and is given 3 features"),
    (nn.LeakyReLU(1.5), "slope 1.5 below zero"),
    (nn.Sequential(nn.Linear(3, 3), nn.Softplus(beta=2)), "for beta=1"),
]
REQUESTS = [
    ({}, "needs a domain, or data"),
    ({"domain": 1.0, "data": torch.zeros(2, 3)}, "and not both"),
    ({"domain": (2.0, 1.0)}, "empty or not finite"),
    ({"domain": 1.0, "tolerance": 0.0}, "tolerance must be positive"),
    ({"data": torch.full((2, 3), torch.inf)}, "data contains NaN or infinity"),
    ({"data": torch.zeros(2, 2, 2, 2)}, "put a Flatten before it"),
]


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        *((network, {"domain": 1.0, "shape": (3,)}, message) for network, message in BAD),
        *((nn.Linear(3, 2), options, message) for options, message in REQUESTS),
        (nn.ReLU(), {"domain": 1.0}, "does not say what it reads"),
        ({}, {"domain": 1.0}, "a dict is no network"),
    ],
)
def test_a_bad_network_or_request_is_refused_in_one_line(network, options, message):
    with pytest.raises(EmulonError, match=message) as refusal:
        compile_network(network, **options)
    assert "\n" not in str(refusal.value)


def test_a_run_refuses_what_leaves_its_ranges_and_other_shapes(cases, interpreter):
    program, x = cases["tanh"].program, cases["tanh"].x
    # Inputs that are each in range, and together drive the first layer out of its own.
    theta = program.layers[0].weight
    driven = min(-program.box.ends[0], program.box.ends[1]) * theta[theta.abs().sum(dim=-1).argmax()].sign()
    for error, message, given in (
        (OutOfDomain, "x reaches from", [10 * x]),
        (OutOfDomain, "0 0 linear gives numbers", [driven[None]]),
        (BadShape, r"Sequential reads \(…, 5\)", [x[:, :4]]),
        (EmulonError, "leave y out", [x, x[:, 0]]),
    ):
        with pytest.raises(error, match=message):
            interpreter.run(program, *given)
