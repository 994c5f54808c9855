"""The terms of every bound, as recorded in `bounds.json`: one changed term of a formula fails here, and here alone.

`python tests/looped/test_looped_bounds.py` writes the record anew (see `tests/recorded.py`).
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recorded import require_as_recorded, write

from emulon.certify import Domain, Spectrum
from emulon.looped import (
    CausalLoopedGradientDescent,
    LoopedAutoRegression,
    LoopedChainOfThought,
    LoopedGradientDescent,
    LoopedNewton,
    RepresentationNetwork,
)
from emulon.looped.causal import causal_error, causal_stencils
from emulon.looped.gradient_descent import LoopedDescent, gain
from emulon.looped.heads import Stencil, truncation
from emulon.looped.newton import newton_errors, newton_stencils
from emulon.looped.transformer import LoopedTransformer

f64, f32 = torch.float64, torch.float32
DOMAIN = Domain(4, 2, 1.25, 3.0, 0.0, spectrum=Spectrum(2.0, 0.25, 1.5))
SHORT = replace(DOMAIN, spectrum=Spectrum(2.0, 0.5, 0.75))
BAD = replace(DOMAIN, spectrum=Spectrum(2.0, 1e-9, 1.5))
HEADS = {"reach": 3.0, "tokens": 4, "summed": 3, "width": 2, "dtype": f64}
RECORD = Path(__file__).with_name("bounds.json")


def representation() -> RepresentationNetwork:
    """‖W‖ is √2 and √5, ‖|W|‖ 2 and √5, biases ½ and 1."""
    weights = [torch.tensor(rows, dtype=f64) for rows in ([[1.0, 1.0], [1.0, -1.0]], [[1.0, 2.0], [2.0, -1.0]])]
    biases = [torch.tensor(row, dtype=f64) for row in ([0.5, 0.0], [-1.0, 0.0])]
    return RepresentationNetwork(weights, biases, slope=0.1, bound=2.0)


MODELS = {
    "descent": lambda dtype: LoopedGradientDescent(DOMAIN, 1e9, step_size=0.5, horizon=3, dtype=dtype),
    "longest steps": lambda dtype: LoopedGradientDescent(DOMAIN, 1e9, step_size=1.0, horizon=40, dtype=dtype),
    "representation": lambda dtype: LoopedGradientDescent(
        DOMAIN, 1e9, representation=representation(), horizon=3, dtype=dtype
    ),
    "series": lambda dtype: LoopedAutoRegression(DOMAIN, representation(), 1e9, order=2, horizon=3, dtype=dtype),
    "chain": lambda dtype: LoopedChainOfThought(DOMAIN, 1e9, depth=2, step_size=0.25, horizon=3, dtype=dtype),
    "newton": lambda dtype: LoopedNewton(DOMAIN, horizon=3, dtype=dtype),
    "newton, short rows": lambda dtype: LoopedNewton(SHORT, 1e9, horizon=3, dtype=dtype),
    "newton, bad spectrum": lambda dtype: LoopedNewton(BAD, horizon=3, dtype=dtype),
    **{
        f"causal, step {size}": lambda dtype, size=size: CausalLoopedGradientDescent(
            DOMAIN, 1e9, step_size=size, horizon=3, dtype=dtype
        )
        for size in (0.01, 0.25, 0.8)
    },
}


def of_model(model: LoopedTransformer) -> dict[str, float]:
    """Named terms for two pairs of heads after 0, 1 and 3 loops, and the height of the gates of each layer."""
    terms = {f"{loops}: {name}": value for loops in (0, 1, 3) for name, value in model.promise(2, loops).terms.items()}
    layers = [*model.frame.pre, *model.frame.loop, *model.frame.post]
    gates = {f"gate of {layer.name}": layer.w_1.abs().max().item() for layer in layers if layer.hidden}
    reach = {"reach": model.stencil(2).reach} if isinstance(model, LoopedDescent) else {}
    return (
        terms | gates | reach | {"pairs": model.pairs, "width": model.slots.width, "all loops": model.certificate.bound}
    )


def of_heads(pairs: int, offset: float) -> dict[str, float]:
    """Few tokens, so that no term drowns the others."""
    stencil = Stencil(pairs, 1.5, **HEADS, cauchy=1.5, offset=offset, lift=0.5)
    return {**stencil.terms, "error": stencil.error(2.0), "C": stencil.sink}


def of_far_heads() -> dict[str, float]:
    """An offset that leaves no digit of the score, or strays that weigh more than the rest: nothing is promised."""
    far = ({"offset": 2.0**52}, {"offset": 1.0, "cauchy": 30.0})
    return {f"{one}": Stencil(1, 7.5, **HEADS, **one).relative for one in far}


def of_truncation() -> dict[str, float]:
    """What forty terms leave out of the series is a few per cent of it for the middle three; the last is infinite."""
    cases = ((1, 1.0), (1, 60.0), (2, 35.0), (3, 25.0), (1, 100.0))
    return {f"{pairs} pairs at {tau}": truncation(pairs, tau) for pairs, tau in cases}


def of_last(step_size: float, horizon: int) -> dict[str, float]:
    """The most loops of a decoder with one pair in float32 for which anything is promised."""
    stencil, _ = causal_stencils(DOMAIN, step_size, 1, f32, horizon)
    low, high = 0, 10**7
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if causal_error(DOMAIN, step_size, stencil, middle) < math.inf else (low, middle)
    return {"loops": low}


def of_largest_norm() -> dict[str, float]:
    """The longest rows for which Newton promises anything after five loops in float32, to six digits."""
    low, high = 0.1, 1.7
    while high - low > 1e-7:
        middle = (low + high) / 2
        domain = replace(DOMAIN, spectrum=Spectrum(2.0, 0.25, middle))
        promised = newton_errors(domain, newton_stencils(domain, 1, f32), 5)[-1] < math.inf
        low, high = (middle, high) if promised else (low, middle)
    return {"norm": round(low, 6)}


CASES = {
    **{f"{n} pairs, offset {at}": lambda n=n, at=at: of_heads(n, at) for n in (1, 2, 3) for at in (0.0, 2.0)},
    "best τ": lambda: {f"{n} pairs": Stencil(n, 1.5, **HEADS).balanced().tau for n in (1, 3, 8)},
    "far heads": of_far_heads,
    "truncation": of_truncation,
    **{name: lambda make=make: of_model(make(f64)) for name, make in MODELS.items()},
    **{
        f"{name}, float32": lambda name=name: of_model(MODELS[name](f32))
        for name in ("descent", "representation", "chain", "newton", "causal, step 0.25")
    },
    "last loops of residuals": lambda: of_last(0.25, 10**6),
    "last loops of weights": lambda: of_last(1e-12, 10**7),
    "largest norm of newton": of_largest_norm,
}


@pytest.mark.parametrize("name", CASES)
def test_every_term_is_as_recorded(name: str) -> None:
    require_as_recorded(RECORD, name, CASES[name](), rel=1e-10)


@pytest.mark.parametrize("smallest", [0.0, 0.25])
@pytest.mark.parametrize(("step_size", "steps"), [(0.25, 0), (0.25, 1), (0.5, 9), (0.5, 400), (0.75, 9), (0.75, 4000)])
def test_a_residual_is_carried_no_further_than_the_gain(step_size, steps, smallest) -> None:
    """The truth is max |1 − (1 − ησ²)^M|/σ over the spectrum, by looking; it is reached by one step and by many."""
    domain = Domain(4, 2, 2.0, 3.0, 0.0, spectrum=Spectrum(2.0, smallest, 1.5))
    squares = torch.linspace(max(smallest, 1e-9), 2.0, 200_001, dtype=f64)
    true = ((1 - (1 - step_size * squares) ** steps).abs() / squares.sqrt()).max().item()
    bound = gain(domain, step_size, steps)
    assert true <= bound * (1 + 1e-12) and (steps not in (0, 1, 400) or not smallest or true >= 0.999 * bound)


if __name__ == "__main__":
    write(RECORD, CASES)
