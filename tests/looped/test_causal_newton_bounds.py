"""The bounds of Newton–Schulz at every position, term by term: recursions by hand, and runs without any rounding."""

import math

import pytest
import torch
from exact_solvers import U

from emulon.certify import Domain, Spectrum
from emulon.looped import CausalLoopedNewton
from emulon.looped.causal_newton import CausalNewtonLoop

f64, f32 = torch.float64, torch.float32
DOMAIN = Domain(4, 2, 1.25, 3.0, 0.0, spectrum=Spectrum(2.0, 0.25, 1.5))
ROOM = 1 / 64


def made(ridge: float = 0.75, pairs: int = 2, dtype: torch.dtype = f64, domain: Domain = DOMAIN) -> CausalNewtonLoop:
    return CausalNewtonLoop(domain, ridge, pairs, dtype)


def test_every_head_reaches_as_far_as_what_it_multiplies() -> None:
    """H ≤ 2.25 + ¾ = 3 and M ≤ 4/3; w ≤ y/(2√λ) = √3; all with a 64th to spare."""
    loop, room, top = made(), 1 + ROOM, 2.25 * (1 + 3e-9) + 0.75
    weight = math.sqrt(3) * room
    assert loop.top == pytest.approx(top, rel=1e-15) and loop.scale == pytest.approx(1 / top**2, rel=1e-15)
    assert loop.weight_norm == pytest.approx(weight, rel=1e-15)
    for name, reach in (("gram", 1.25), ("moment", 3.0)):
        one = loop.stencils[name]
        assert (one.reach, one.cauchy, one.offset, one.lift) == (reach, 1.0, 0.0, math.log(4))
        assert (one.pairs, one.tokens, one.summed, one.width) == (2, 10, 4, 3)
    wanted = {
        # (reach, ‖q‖·‖k‖ beside it): Ĥ and M̂; M̂ and ĤM̂, which errs, too; M̂ and the mean of yx; ŵ and x.
        "product": (room, top / 0.75 * room),
        "step": (room / 0.75, room**2 * top / 0.75),
        "weights": (weight, room / 0.75 * 4.5 * room / weight),
        "answer": (weight * 1.5 * room, 1.0),
    }
    for name, (reach, cauchy) in wanted.items():
        one = loop.stencils[name]
        assert (one.reach, one.cauchy) == pytest.approx((reach, cauchy), rel=1e-14)
        # Codes of three digits; what lies elsewhere loses log(10/u) + 6·cauchy, by an integer for each digit.
        assert one.offset == 2 * math.ceil((math.log(10) - math.log(U) + 6 * cauchy) / 2) * 3
        assert (one.pairs, one.tokens, one.summed, one.width, one.lift) == (2, 10, 1, 2 + 3 + 1, 0.0)
    # Of small numbers no more is asked than of large ones.
    small = Domain(4, 2, 1.25, 3e-3, 0.0, spectrum=Spectrum(2.0, 0.25, 1.5))
    assert made(domain=small).stencils["answer"].cauchy == made(30.0).stencils["weights"].cauchy == 1.0


def by_hand(loop: CausalNewtonLoop, loops: int, u: float) -> tuple[list[float], str]:
    """All drifts, and which reach ended the promise: of ĤM̂ ("product"), of M̂ĤM̂ ("step"), or of none."""
    ridge, error_of = loop.ridge, {name: one.reach * one.relative for name, one in loop.stencils.items()}
    top = 2.25 * (1 + 3e-9) + ridge
    gram = 2 * (loop.domain.x * error_of["gram"] + 4 * u * top)
    error, least = (gram + 8 * u * top) / top**2, (ridge / top) ** 2
    drifts = [error]
    for step in range(loops):
        size = 1 / ridge + error
        through = size * size * gram + size * 2 * error_of["product"]
        rest = [math.inf] * (loops - step)
        if error * top + gram * size > ROOM:
            return drifts + rest, "product"
        if 2 * error + top * error**2 + through > ROOM / ridge:
            return drifts + rest, "step"
        shock = through + 2 * error_of["step"] + 8 * u * math.sqrt(2) * size * (2 + ROOM)
        error, least = error * (2 - 2 * least + top * error) + shock, least * (2 - least)
        drifts.append(error)
    return drifts, ""


@pytest.mark.parametrize("dtype, u", [(f64, U), (f32, 2.0**-24)])
def test_errors_of_an_inverse_grow_as_the_proof_says(dtype, u) -> None:
    for pairs in (1, 3):
        loop = made(30.0, pairs, dtype)
        wanted, ended = by_hand(loop, 6, u)
        assert not ended and loop.drifts(6) == pytest.approx(wanted, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("ridge, loops, reason", [(10.0, 1, "step"), (0.75, 2, "product")])
def test_promises_end_where_products_may_leave_their_reach(ridge: float, loops: int, reason: str) -> None:
    """The larger the samples' entries, the sooner: up to a certain size all loops are promised, beyond not the last."""

    def with_entries(size: float) -> CausalNewtonLoop:
        return made(ridge, 4, f32, Domain(4, 2, size, 3.0, 0.0, spectrum=Spectrum(2.0, 0.25, 1.5)))

    low, high = 1.25, 125.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if by_hand(with_entries(middle), loops, 2.0**-24)[1] else (middle, high)
    within, beyond = with_entries(low * (1 - 1e-9)), with_entries(high * (1 + 1e-9))
    assert max(within.drifts(loops)) < math.inf
    wanted, ended = by_hand(beyond, loops, 2.0**-24)
    assert ended == reason and beyond.drifts(loops) == pytest.approx(wanted, rel=1e-12) and wanted[-1] == math.inf
    more, _ = by_hand(beyond, loops + 2, 2.0**-24)
    assert beyond.drifts(loops + 2) == pytest.approx(more, rel=1e-12) and more[-3:] == [math.inf] * 3


def test_a_prediction_errs_by_the_inverse_the_means_the_weights_and_the_answer() -> None:
    loop = made(0.75, 3)
    error_of = {name: one.reach * one.relative for name, one in loop.stencils.items()}
    length, moment = 1.5 * (1 + 1e-9), math.sqrt(2) * (1.25 * error_of["moment"] + 2 * U * 4.5)
    readout = math.sqrt(2) * error_of["weights"]
    for drift in (0.0, 1e-4):
        wanted = {
            "loop": drift * 4.5 * length,
            "collected means": (4 / 3 + drift) * moment * length,
            "weights": readout * length,
            "answer": error_of["answer"],
        }
        assert loop.terms(drift) == pytest.approx(wanted, rel=1e-13, abs=0.0)
    model = CausalLoopedNewton(DOMAIN, 3.0, horizon=2)
    for loops in range(3):
        drifts = model.solver.drifts(loops)
        assert model.promise_after(loops).bound == pytest.approx(sum(model.solver.terms(drifts[-1]).values()))
    worst = max(model.promise_after(loops).bound for loops in range(3))
    assert model.certificate.bound == worst == pytest.approx(model._bound(model.pairs, 2))


def test_nothing_is_promised_of_weights_that_may_be_too_long() -> None:
    """Half a 64th of ‖w‖ is given to what the inverse, the means and the readout are off by."""
    loop = made(0.75, 1, f32)
    error_of = {name: one.reach * one.relative for name, one in loop.stencils.items()}
    moment = math.sqrt(2) * (1.25 * error_of["moment"] + 2 * 2.0**-24 * 4.5)
    left = ROOM * loop.weight_norm / 2 - 4 / 3 * moment - math.sqrt(2) * error_of["weights"]
    edge = left / (4.5 + moment)
    assert edge > 0 and loop.terms(edge * (1 - 1e-9))["loop"] < math.inf
    assert loop.terms(edge * (1 + 1e-9)) == {"loop": math.inf}
