"""Arb's precision belongs to one thread at a time: a proof is the same whatever else goes on."""

import threading

import pytest
from flint import ctx

from emulon.certify.interpolation import require_smooth
from emulon.expressions import parse
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter.curvature import Slopes
from emulon.softmax import approximate


@pytest.mark.parametrize(
    "other",
    [
        lambda: require_smooth(parse("exp(t)*sin(9*t)"), -1.0, 1.0),
        lambda: Slopes(parse("tanh(3*t)")).between(-1.0, 1.0),
        lambda: parse("Abs(t - 1/3)").breaks(-1.0, 1.0),
    ],
    ids=["require_smooth", "slopes", "breaks"],
)
def test_a_second_thread_does_not_spoil_a_proof(other):
    done = threading.Event()

    def meanwhile() -> None:
        while not done.is_set():
            other()

    thread = threading.Thread(target=meanwhile)
    thread.start()
    try:
        made = approximate("exp(-1e5*(t-0.11363)**2)", (-1, 1), points=1)
    finally:
        done.set()
        thread.join()
    assert made.certificate.bound >= abs(made(0.11363).item() - 1.0) > 0.5


def test_precision_and_order_are_what_they_were_afterwards():
    before = ctx.prec, ctx.cap
    with ball_arithmetic(200, 9):
        with ball_arithmetic(300, 3):
            assert (ctx.prec, ctx.cap) == (300, 3)
        assert (ctx.prec, ctx.cap) == (200, 9)
    assert (ctx.prec, ctx.cap) == before


def test_a_proof_does_not_depend_on_the_precision_that_someone_left_behind():
    before = ctx.prec
    try:
        ctx.prec = 10
        coarse = Slopes(parse("tanh(t)")).between(-1.0, 1.0)
    finally:
        ctx.prec = before
    assert coarse == Slopes(parse("tanh(t)")).between(-1.0, 1.0)
