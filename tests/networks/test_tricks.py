"""Modules that look like known parts and compute something else: refused by name, or compiled as what they do."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from emulon import compile_network
from emulon.core.errors import BadNetwork
from emulon.models import Standard
from emulon.models.block import Block, BlockShape
from emulon.networks import Expression, Heads

f64 = torch.float64
# Where a trick only acts beyond what a few points show.
FAR = 0.9


class HiddenSequential(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + (x.abs().amax(dim=-1, keepdim=True) > FAR)


class HiddenLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1 + (x.abs().amax() > FAR))


class HiddenTanh(nn.Tanh):
    def forward(self, x):
        return torch.where(x > FAR, x, torch.tanh(x))


class DoubleSequential(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


class SquaredTanh(nn.Tanh):
    def forward(self, x):
        return torch.tanh(x) * torch.tanh(x)


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


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def changed(change) -> nn.Module:
    network = plain()
    change(network)
    return network


def encoder(change) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True).double().eval()
    change(layer)
    return layer


def with_hook(module, hook):
    module.register_forward_hook(hook)
    return module


def outputs_changed(module, inputs, output):
    return output + (inputs[0].abs().amax() > FAR)


def inputs_changed(module, inputs):
    return (inputs[0].clamp(max=FAR),)


def replaced_methods(network):
    network[0].forward = lambda x: nn.functional.linear(x, network[0].weight)


def replaced_call(network):
    network[0]._call_impl = lambda x: nn.functional.linear(x, network[0].weight)


def replaced_convolution():
    module = nn.Conv2d(1, 2, 2).double()
    module._conv_forward = lambda x, weight, bias: nn.functional.conv2d(x, 2 * weight, bias)
    return module


def replaced_weight(network):
    network[0]._parameters["weight"] = network[0].weight.detach().as_subclass(Wrapped)


def setting(name, value):
    def change(module):
        owner = module
        *parts, last = name.split(".")
        for part in parts:
            owner = getattr(owner, part)
        setattr(owner, last, value)

    return change


def block(kind, change=lambda module: None) -> nn.Module:
    torch.manual_seed(0)
    made = kind(BlockShape(width=4, heads=2)).double()
    change(made)
    return made


def learner(kind, change=lambda module: None) -> nn.Module:
    torch.manual_seed(0)
    made = kind(3, 1, 7, width=4, heads=2, layers=1).double()
    change(made)
    return made


VECTOR, SEQUENCE, TOKENS, IMAGE = (3,), (3, 4), (7, 3), (1, 4, 4)
TRICKS = {
    "a subclass of Sequential": (lambda: HiddenSequential(*plain()), "cannot be followed|not compiled", VECTOR),
    "a subclass of Linear": (lambda: nn.Sequential(HiddenLinear(3, 3)), "in a HiddenLinear reads", VECTOR),
    "a subclass of Tanh": (lambda: changed(setting("1", HiddenTanh())), "gt in the forward of a HiddenTanh", VECTOR),
    "a hook": (lambda: changed(lambda n: with_hook(n[1], outputs_changed)), "a Tanh at 1 has forward hooks", VECTOR),
    "a hook of the whole": (lambda: with_hook(plain(), outputs_changed), "a Sequential has forward hooks", VECTOR),
    "a hook before": (lambda: changed(lambda n: n[1].register_forward_pre_hook(inputs_changed)), "hooks", VECTOR),
    "a forward of one instance": (lambda: changed(replaced_methods), "a Linear at 0 has forward replaced", VECTOR),
    "a call of one instance": (lambda: changed(replaced_call), "_call_impl replaced", VECTOR),
    "a call of a class": (lambda: Called(), "__call__ replaced", VECTOR),
    "a method that forward uses": (lambda: replaced_convolution(), "_conv_forward replaced", IMAGE),
    "a weight that is more than a tensor": (lambda: changed(replaced_weight), "weight of a Linear at 0 is a W", VECTOR),
    "weight norm by hook": (lambda: changed(lambda n: weight_norm(n[0])), "hooks", VECTOR),
    "weight norm": (lambda: changed(lambda n: parametrizations.weight_norm(n[0])), "parametrised", VECTOR),
    "spectral norm by hook": (lambda: changed(lambda n: spectral_norm(n[0])), "hooks", VECTOR),
    "spectral norm": (lambda: changed(lambda n: parametrizations.spectral_norm(n[0])), "parametrised", VECTOR),
    "a norm of a transformer": (lambda: encoder(setting("norm2", nn.RMSNorm(4))), "norm2 is not compiled", SEQUENCE),
    "a dropout of a transformer": (lambda: encoder(setting("dropout1", nn.Tanh())), "dropout1 is not", SEQUENCE),
    "a linear map of a transformer": (lambda: encoder(setting("linear1", HiddenLinear(4, 6))), "linear1 is", SEQUENCE),
    "a hook in a transformer": (
        lambda: encoder(lambda m: with_hook(m.self_attn, outputs_changed)),
        "MultiheadAttention at self_attn has forward hooks",
        SEQUENCE,
    ),
    "one more key": (lambda: encoder(setting("self_attn.add_zero_attn", True)), "more than its positions", SEQUENCE),
    "one dropout in training": (lambda: encoder(lambda m: m.dropout2.train()), "training mode", SEQUENCE),
    "an activation its kernel ignores": (lambda: encoder(setting("activation", nn.Tanh())), "fast kernel", SEQUENCE),
    "a subclass of a block": (lambda: block(ChangedBlock), "changes forward and inherits lower_into", SEQUENCE),
    "a hook in a block": (
        lambda: block(Block, lambda m: with_hook(m.attention.merge, outputs_changed)),
        "attention.merge has forward hooks",
        SEQUENCE,
    ),
    "a subclass of a learner": (lambda: learner(ChangedStandard), "changes states and inherits lower_states", TOKENS),
    "a claim of an instance": (
        lambda: changed(setting("1.lower_into", lambda builder, place: builder.linear(place, "x", torch.eye(4)))),
        "lower_into replaced",
        VECTOR,
    ),
    "what is changed in place": (lambda: Residual(True), "reads what relu changed in place", VECTOR),
    "a flattened batch": (lambda: Functions(torch.flatten, nn.ReLU()), "only a Flatten of all dimensions", IMAGE),
    "dropout in a forward": (lambda: Functions(nn.functional.dropout), "dropout in the forward", VECTOR),
}


# PyTorch would rather have its newer norms used; the older ones are hooks.
OLDER = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")


@OLDER
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
            compile_network(plain(), 1.0)
    finally:
        handle.remove()
    compile_network(plain(), 1.0)


def test_a_class_whose_forward_was_replaced_is_refused(monkeypatch):
    own = nn.Linear.forward

    @functools.wraps(own)
    def other(self, x):
        return own(self, x) * (1 + (x.abs().amax() > FAR))

    monkeypatch.setattr(nn.Linear, "forward", other)
    with pytest.raises(BadNetwork, match="the forward of Linear is not PyTorch's own"):
        compile_network(plain(), 1.0)


COMPILED = {
    "a subclass that can be followed": lambda: DoubleSequential(*plain()),
    "a subclass of an activation": lambda: changed(setting("1", SquaredTanh())),
    "nothing in place": lambda: Residual(False),
    "in place, and read no more": lambda: Functions(nn.Sequential(nn.ReLU(inplace=True), nn.Tanh())),
    "a slope by position": lambda: Functions(functools.partial(nn.functional.leaky_relu, negative_slope=0.3)),
    "a shift that float32 does not hold": lambda: Functions(lambda h: 0.1 - h),
    "a quotient": lambda: Functions(lambda h: h / 3),
    "a function whose name is kept": lambda: changed(setting("1", Expression("sin(3*t)"))),
    "weight norm that was fixed": lambda: changed(lambda n: nn.utils.remove_weight_norm(weight_norm(n[0]))),
    "a scale of heads": lambda: Heads(*(torch.eye(3, dtype=f64).unsqueeze(0) for _ in range(3)), scale=3.0),
}


@OLDER
@pytest.mark.parametrize("name", COMPILED)
def test_what_can_be_followed_is_compiled_as_what_it_computes(name):
    torch.manual_seed(0)
    network = COMPILED[name]().double()
    x = torch.rand(6, 3, dtype=f64) - 0.5
    x = x.unsqueeze(-2).expand(6, 2, 3).contiguous() if isinstance(network, Heads) else x
    run = compile_network(network, data=x)(x)
    wanted = copy.deepcopy(network)(x).detach()
    assert (run.outputs - wanted).abs().max() <= run.audit.bound + 1e-14 < 1e-8


def test_an_expression_is_what_it_says_when_it_is_changed():
    network = Expression("sin(t)")
    network.f = "cos(t)"
    x = torch.linspace(-1, 1, 5, dtype=f64).unsqueeze(-1)
    assert (compile_network(network, data=x)(x).outputs - x.cos()).abs().max() < 1e-9
