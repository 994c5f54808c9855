"""Theorems 3.1, E.1 and E.2 and Corollaries 3.1.1, 3.1.2 and E.2.1: error against bound over the grid's points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from emulon.algorithms import losses
from emulon.certify import Domain
from emulon.constructions import GradientStep, HopfieldResidualMap, ResidualMap
from emulon.expressions import parse
from emulon.softmax import approximate
from reproduce import bounded
from reproduce.bounded import Row, anywhere, largest, uniform
from reproduce.claim import Numbers, Scale, Setting, Verdict

DATA = "Data are uniform on a stated domain"
TANH, SIN, ROOT = "tanh(t)", "sin(t)", "t/sqrt(1 + t**2)"
TOLERANCES = [1e-2, 1e-4, 1e-6, 1e-8]
DOUBLING = [17, 33, 65, 129, 257]


def exact_map(f: str, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    residual = (x @ w.unsqueeze(-1)).squeeze(-1) - y
    return parse(f)(residual).unsqueeze(-1) * x


# The sizes of section 5.1: sequences of 20, 24 features.
OF_SECTION_5_1 = Domain(samples=20, features=24, x=1.0, y=1.0, w=0.5)


def theorem_3_1(setting: Setting) -> Numbers:
    data = anywhere(OF_SECTION_5_1, setting.sizes["datasets"], setting.seed)

    def measured(f: str, **options: Any) -> Row:
        built = ResidualMap(f, OF_SECTION_5_1, **options)
        return built.f.keys, largest(built(*data), exact_map(f, *data)), built.certificate.bound

    ours = {"ours, tanh": ("tightest", TANH), "ours, sin": ("tolerances", SIN)}
    paper = {"paper's grid, tanh": ("points", TANH), "paper's grid, sin": ("points", SIN)}
    return bounded.curves(setting, measured, paper | ours)


THEOREM_3_1 = bounded.claim(
    "emulation-theorem-3.1",
    "Theorem 3.1",
    "One softmax head with a linear layer gives f(w·x − y)·x for every sample, to any precision.",
    theorem_3_1,
    {"small": Scale(2, {"points": [65, 257, 1025, 2049], "tolerances": [*TOLERANCES, 1e-10], "datasets": 100})},
    "error ≤ ε for any ε > 0 (P = O(1/ε) grid points: our inference from the proof)",
    differs="The routing constant is the corrected one (the printed one is half of what its own footnote derives). "
    f"{DATA}, |x|, |y| ≤ 1 and |w| ≤ ½, as a bound needs one.",
)

DOMAIN = Domain(samples=20, features=8, x=1.0, y=1.0, w=0.5)
# ℓ by the expression of ℓ′: the head is given ℓ′, automatic differentiation ℓ.
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    TANH: lambda t: t.cosh().log(),
    ROOT: lambda t: (1 + t.square()).sqrt(),
}


def gradients(derivative: str, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """∇_w ℓ(w·x_i − y_i) for every sample i, by automatic differentiation: a copy of w for each."""
    copies = w.unsqueeze(-2).expand_as(x).clone().requires_grad_()
    values = LOSSES[derivative]((copies * x).sum(dim=-1) - y)
    (each,) = torch.autograd.grad(values.sum(), copies)
    return each


def corollary_3_1_1(setting: Setting) -> Numbers:
    data = anywhere(DOMAIN, setting.sizes["datasets"], setting.seed)

    def measured(derivative: str, **options: Any) -> Row:
        head = ResidualMap(derivative, DOMAIN, **options)
        return head.f.keys, largest(head(*data), gradients(derivative, *data)), head.certificate.bound

    paper = {"paper's grid, log-cosh": ("points", TANH), "paper's grid, √(1 + t²)": ("points", ROOT)}
    return bounded.curves(setting, measured, paper | {"ours, √(1 + t²)": ("tolerances", ROOT)})


COROLLARY_3_1_1 = bounded.claim(
    "emulation-corollary-3.1.1",
    "Corollary 3.1.1",
    "One softmax head with a linear layer gives the gradient of a loss for every sample, in parallel.",
    corollary_3_1_1,
    {"small": Scale(0.2, {"points": DOUBLING, "tolerances": TOLERANCES, "datasets": 20})},
    differs=f"Exact gradients are those of automatic differentiation. {DATA}.",
)

WIDE, STEP_SIZE = Domain(samples=20, features=8, x=1.0, y=1.0, w=1.0), 0.5


def corollary_3_1_2(setting: Setting) -> Numbers:
    x, y, w = anywhere(WIDE, setting.sizes["datasets"], setting.seed)

    def measured(name: str, **options: Any) -> Row:
        built = GradientStep(name, WIDE, step_size=STEP_SIZE, **options)
        slopes = getattr(losses, name)().slope((x @ w.unsqueeze(-1)).squeeze(-1) - y)
        exact = w - STEP_SIZE * (slopes.unsqueeze(-1) * x).mean(dim=-2)
        return built.f.keys, largest(built(x, y, w), exact), built.certificate.bound

    ours = {"ours, squared": ("tolerances", "squared"), "ours, log-cosh": ("tightest", "log_cosh")}
    return bounded.curves(setting, measured, {"paper's grid, squared": ("points", "squared")} | ours)


COROLLARY_3_1_2 = bounded.claim(
    "emulation-corollary-3.1.2",
    "Corollary 3.1.2",
    "One softmax head with a readout by the mean makes one step of gradient descent, to any precision.",
    corollary_3_1_2,
    {"small": Scale(0.2, {"points": [17, 65, 257, 1025], "tolerances": [*TOLERANCES, 1e-10, 1e-12], "datasets": 100})},
    differs="The values carry w, without which the readout gives −η∇ and not w − η∇. η is 0.5 and data are uniform on "
    "a stated domain.",
)

TOKENS, FEATURES, INTERCEPT = 20, 6, 0.3


def retrieve(state: Tensor, patterns: Tensor, values: Tensor, beta: float) -> Tensor:
    """Definition E.1: V·Softmax(β·Kᵀ·Q), tokens as rows, W_Q and W_K the identity."""
    return torch.softmax(beta * state @ patterns.mT, dim=-1) @ values


def theorem_e_1(setting: Setting) -> Numbers:
    """Patterns (slope·a, slope·b + intercept) and state (z, 1): the proof's K and Q with β inside K."""
    draw = torch.Generator().manual_seed(setting.seed)
    z = uniform(draw, setting.sizes["datasets"], TOKENS, FEATURES)
    a = uniform(draw, FEATURES) / FEATURES
    state = torch.cat([z, torch.ones_like(z[..., :1])], dim=-1)
    largest_input = a.abs().sum().item() + INTERCEPT

    def measured(**options: Any) -> Row:
        approximation = approximate("sin(6*t)", (-largest_input, largest_input), **options)
        grid = approximation.grid
        offsets = (grid.slopes * INTERCEPT + grid.intercepts).unsqueeze(-1)
        patterns = torch.cat([grid.slopes.unsqueeze(-1) * a, offsets], dim=-1)
        exact = approximation.function(z @ a + INTERCEPT)
        retrieved = retrieve(state, patterns, grid.values.unsqueeze(-1), 1.0).squeeze(-1)
        return approximation.keys, largest(retrieved, exact), approximation.certificate.bound

    return bounded.curves(setting, measured, {"paper's grid": ("points",), "ours": ("tolerances",)})


THEOREM_E_1 = bounded.claim(
    "emulation-theorem-e.1",
    "Theorem E.1",
    "A Hopfield network gives f(a·z + b) for every token z, for any continuous f, to any precision.",
    theorem_e_1,
    {"small": Scale(0.1, {"points": DOUBLING, "tolerances": [1e-2, 1e-5, 1e-8], "datasets": 50})},
    differs="f = sin 6t has one output, where the theorem allows several.",
)

STORED = Domain(samples=12, features=8, x=1.0, y=1.0, w=0.5)


def through_definition(layer: HopfieldResidualMap, x: Tensor, y: Tensor, w: Tensor, sign: float = 1.0) -> Tensor:
    """The layer's stored patterns and its state through Definition E.1; `sign` stands in front of −L² in Linear_w."""
    patterns, values = layer.patterns(x, y)
    state = layer.state(w)
    row = x.shape[-1] + 1  # after x and y
    state = torch.cat([state[..., :row], sign * state[..., row : row + 1], state[..., row + 1 :]], dim=-1)
    return retrieve(state, patterns, values @ layer.w_v.mT, layer.beta)


def hopfield(setting: Setting, functions: Mapping[str, Callable[..., Tensor]]) -> Numbers:
    """The paper's grid over its points and ours over tolerances, by function; and the layer with the printed sign."""
    data = anywhere(STORED, setting.sizes["datasets"], setting.seed)
    printed: list[float] = []

    def measured(f: str, **options: Any) -> Row:
        layer = HopfieldResidualMap(f, STORED, **options)
        target = functions[f](f, *data)
        if options.get("grid") == "paper":
            printed.append(largest(through_definition(layer, *data, sign=-1.0), target))
        return layer.f.keys, largest(through_definition(layer, *data), target), layer.certificate.bound

    ways = (("paper's grid", "points"), ("ours", "tolerances"))
    each = {f"{name}, {f}": (what, f) for f in functions for name, what in ways}
    return bounded.curves(setting, measured, each) | {"printed": printed}


def theorem_e_2(setting: Setting) -> Numbers:
    return hopfield(setting, {TANH: exact_map, SIN: exact_map})


def corollary_e_2_1(setting: Setting) -> Numbers:
    return hopfield(setting, {TANH: gradients, ROOT: gradients})


def judge_hopfield(numbers: Numbers) -> Verdict:
    """The corrected layer by its bounds and its fall; the printed one is shown."""
    verdict, printed = bounded.judge(numbers), min(numbers["printed"])
    reason = f"{verdict.reason}; with the printed −1 the error is {printed:.1g} or more"
    return Verdict(verdict.state, verdict.ours, reason)


OF_HOPFIELD = Scale(0.6, {"points": [65, 257, 1025], "tolerances": TOLERANCES, "datasets": 100})
HOPFIELD = bounded.claim(
    "emulation-hopfield",
    "Theorem E.2",
    "A modern Hopfield layer retrieves f(w·x − y)·x from stored data, to any precision.",
    theorem_e_2,
    {"small": OF_HOPFIELD},
    judge=judge_hopfield,
    differs="The layer is evaluated by Definition E.1 itself: softmax of β times patterns times state.",
    correction="Linear_w needs +1, not −1, in front of −L²: with −1 the layer retrieves from the wrong end of its "
    "grid. The routing constant needs 1/β.",
)
COROLLARY_E_2_1 = bounded.claim(
    "emulation-corollary-e.2.1",
    "Corollary E.2.1",
    "A modern Hopfield layer retrieves the gradient of a loss for every sample, to any precision.",
    corollary_e_2_1,
    {"small": OF_HOPFIELD},
    judge=judge_hopfield,
    differs="Exact gradients are those of automatic differentiation, of log-cosh and of √(1 + t²).",
    correction="As Theorem E.2, on which it stands.",
)
