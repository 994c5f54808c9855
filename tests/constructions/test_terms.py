"""The terms of every construction's certificate, as recorded in `terms.json`, and what they are made of.

`python tests/constructions/test_terms.py` writes the record anew (see `tests/recorded.py`).
"""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from recorded import require_as_recorded, write

from emulon.certify import Domain
from emulon.constructions import (
    DescentInContext,
    GradientStep,
    HeadInEmbedding,
    HeadInTokens,
    LinearLayer,
    ResidualMap,
    TruncatedLinear,
)
from emulon.constructions.accuracy import Accuracy, checked_to
from emulon.constructions.emulated_head import entry_tolerance
from emulon.constructions.gradient_step import Proximal
from emulon.constructions.linear_layer import padded, with_room
from emulon.constructions.truncated_linear import RowHeads, SharpGrid
from emulon.core.errors import OutOfDomain

f64, f32, U = torch.float64, torch.float32, 2.0**-53
DOMAIN = Domain(5, 3, 2.0, 1.0, 0.5)
SHARP = SharpGrid(tokens=6, heads=3, lo=-1.5, hi=2.0)
PAPER = {"points": 17, "grid": "paper"}
RECORD = Path(__file__).with_name("terms.json")


def of_step(loss: str, dtype: torch.dtype) -> dict[str, float]:
    plain = GradientStep(loss, DOMAIN, step_size=0.125, l2=2.0, dtype=dtype, **PAPER)
    soft = GradientStep(loss, DOMAIN, step_size=0.125, l1=0.5, l2=2.0, dtype=dtype, **PAPER)
    assert soft.proximal is not None
    penalised = {f"with l1, {name}": value for name, value in soft.certificate.terms.items()}
    return plain.certificate.terms | penalised | {"reach of the proximal step": soft.proximal.domain.w}


def of_head(made: HeadInTokens | HeadInEmbedding) -> dict[str, float]:
    """For the whole domain, and for a head with smaller keys and values than its largest."""
    small = made._certificate(0.01, 0.02, 0.01).terms | {"bound": made.bound}
    whole = {f"domain, {term}": value for term, value in made.certificate.terms.items()}
    return small | whole | {f"entries, {name}": value for name, value in made.entries.terms.items()}


def of_residual_map(scale: float) -> dict[str, float]:
    made = ResidualMap("tanh(t)", DOMAIN, **PAPER).template
    return made.certificate(scale).terms | {"leak": made.leak}


def of_descent() -> dict[str, float]:
    options = {"step_size": 0.01, "l2": 0.5, "l1": 0.25, "dtype": f32}
    return DescentInContext("squared", DOMAIN, steps=40, **options, **PAPER).certificate.terms


def of_tolerances() -> dict[str, float]:
    heads = ((0.01, 10), (0.2, 4), (0.356, 5), (5.0, 3))
    found = {f"heads for {one}": float(SharpGrid.within(*one, -1.5, 2.0).heads) for one in heads}
    rooms = {f"room, {dtype}": with_room(2.0, 3, dtype) - 2.0 for dtype in (f64, f32)}
    return found | rooms | {"checked": checked_to(3, 2.0), "entries": entry_tolerance(1e-6, 3.0, 2, 0.5, f64)}


IN_EACH_DTYPE = {
    "squared step": lambda dtype: of_step("squared", dtype),
    "poisson step": lambda dtype: of_step("poisson", dtype),
    "sharp heads": lambda dtype: SHARP.certificate(4, dtype).terms,
    "linear layer": lambda dtype: LinearLayer(4, 3, 2, 2.0, dtype=dtype, **PAPER).certificate.terms,
    "head in tokens": lambda dtype: of_head(HeadInTokens(5, 3, 2, 2.0, beta=4.0, dtype=dtype, **PAPER)),
    "head in embedding": lambda dtype: of_head(HeadInEmbedding(5, 3, 2, 2.0, points=3, beta=0.25, dtype=dtype)),
    "head in embedding, paper": lambda dtype: of_head(
        HeadInEmbedding(5, 3, 2, 2.0, heads=9, grid="paper", dtype=dtype)
    ),
}
CASES = {
    **{f"residual map, {scale}": lambda scale=scale: of_residual_map(scale) for scale in (1.0, 0.25)},
    "proximal step": lambda: Proximal(0.25, 3, 2.0, Accuracy(None, 17, "paper", f64)).certificate.terms,
    **{
        f"{name}, {dtype}": lambda make=make, dtype=dtype: make(dtype)
        for name, make in IN_EACH_DTYPE.items()
        for dtype in (f64, f32)
    },
    "descent": of_descent,
    "tolerances": of_tolerances,
}


@pytest.mark.parametrize("name", CASES)
def test_every_term_is_as_recorded(name: str) -> None:
    require_as_recorded(RECORD, name, CASES[name](), rel=1e-7)


@pytest.mark.parametrize("bound", [2.0, 2e-3])
def test_tokens_that_only_pad_are_silent_wherever_they_are_asked(bound: float) -> None:
    """e^{−800} of any key there is, for products to the end of the range; slopes are small, or large."""
    module = LinearLayer(4, 3, 2, bound, points=8)
    grid = module.f.grid
    assert grid.hi == module.bound + checked_to(3, 4 * module.bound) > bound
    slopes, intercepts, values = padded(grid, 40)
    heads = RowHeads.soft((40, 3, 1), grid)
    indexed = heads.starts[0] + heads.step * torch.arange(40, dtype=f64)
    for s in (-grid.range, grid.range):
        for scores in (slopes * s + intercepts, indexed * s + heads.intercepts[0]):
            assert scores[len(grid) :].max() <= scores[: len(grid)].min() - 799.9
    assert not values[len(grid) :].any() and torch.equal(values[: len(grid)], grid.values)
    torch.testing.assert_close(indexed[: len(grid)], grid.slopes, rtol=1e-13, atol=1e-13)


def test_an_audit_of_a_head_takes_the_norms_of_its_own_rows() -> None:
    made = HeadInTokens(2, 2, 2, 4.0, points=6)
    x = torch.tensor([[1.0, 0.5], [-0.25, 1.0]], dtype=f64)
    w_k, w_q, w_v = (
        torch.tensor(part, dtype=f64) for part in ([[1, -1], [0, 1]], [[1, 0], [2, 1]], [[0, -1.5], [1, 0]])
    )
    # x·W_Kᵀ has rows (½, ½) and (−5/4, 1); x·W_Qᵀ (1, 5/2) and (−¼, ½); x·W_Vᵀ (−¾, 1) and (−3/2, −¼).
    found, lift = made.audit(x, w_k, w_q, w_v), 1 + 1e-12  # each lifted over its own rounding
    assert found.scope == "run" and found.terms == made._certificate(2.25 * lift, 3.5 * lift, 1.5 * lift).terms


def test_a_sharp_range_is_kept_to_at_both_ends_with_room_for_rounding() -> None:
    made, w = TruncatedLinear(6, 1, -1.5, 2.0, heads=3, grid="paper"), torch.full((1,), 0.5, dtype=f64)
    x = torch.linspace(-1.0, 1.5, 6, dtype=f64).unsqueeze(-1)
    for edge, allowed in ((-1.5 - 2e-15, True), (2 + 2e-15, True), (-1.5 - 1e-9, False), (2 + 1e-9, False)):
        x[0] = edge
        with nullcontext() if allowed else pytest.raises(OutOfDomain):
            assert made.certificate.verify(made(2 * x, w), x.squeeze(-1)) < 0.2
    assert TruncatedLinear(6, 1, -1.5, 2.0, 0.3, grid="paper").certificate.bound <= 0.3
    # Elsewhere half as much again is taken, and clipped.
    assert TruncatedLinear(6, 1, -1.5, 2.0, points=8).heads.bound == with_room(3.0, 1, f64)


if __name__ == "__main__":
    write(RECORD, CASES)
