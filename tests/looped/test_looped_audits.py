"""The audit of a run is its distance from the exact iteration, and no certificate is below it: against an Arb oracle.

The oracle (`tests/fuzz/oracle.py`) takes the plain steps of the docstrings one by one, and shares no code with emulon.
"""

import pytest
import torch
from flint import arb, ctx
from fuzz import oracle

from emulon.certify import Domain, Spectrum
from emulon.certify.functions import distance
from emulon.expressions.evaluation import arb_matrix, ball_arithmetic
from emulon.looped import (
    CausalLoopedGradientDescent,
    LoopedAutoRegression,
    LoopedChainOfThought,
    LoopedGradientDescent,
    LoopedNewton,
    RepresentationNetwork,
)
from emulon.looped.newton import start_scale
from emulon.looped.transformer import newton

f64, f32 = torch.float64, torch.float32
DOMAIN = Domain(4, 2, x=1.0, y=1.0, w=0.0)
PHI = RepresentationNetwork(
    [torch.tensor([[0.5, -0.3], [0.2, 0.4]]).double()], [torch.tensor([0.1, -0.2]).double()], slope=0.1, bound=1.0
)
PLAIN = RepresentationNetwork(
    [torch.tensor([[0.5, 0.25, -0.25, 0.0], [-0.5, 1.0, 0.0, 0.5]]).double()], slope=0.5, bound=1.0
)


def rows(tensor):
    return [oracle.balls(row) for row in tensor.double().tolist()]


def leaky(number, slope):
    return number.max(0) + number.min(0) * arb(slope)


def lifted(phi, points):
    weight, bias = rows(phi.level(0)[0]), oracle.balls(phi.level(0)[1].tolist())
    affine = [[a + b for a, b in zip(oracle.matvec(weight, row), bias, strict=True)] for row in points]
    return [[leaky(number, phi.slope) for number in row] for row in affine]


def descended(x, y, query, step_size, loops):
    """query·A, A a row for every output."""
    step, columns = {"step_size": step_size}, zip(*y, strict=True)
    return [oracle.dot(query, oracle.descended(x, list(one), lambda t: t, step, loops)) for one in columns]


def at_every_position(x, y, query, step_size, loops):
    points = [*x, query]
    learned = [descended(x[:i], y[:i], points[i], step_size, loops) for i in range(1, len(points))]
    return [arb(0), *(number for (number,) in learned)]


def solved(x, y, query, scale, loops):
    gram, moment = oracle.normal_equations(x, [row[0] for row in y])
    return [oracle.dot(query, oracle.matvec(oracle.newton_schulz(gram, scale, loops), moment))]


def of_series(series, loops):
    """Windows of two vectors, zero before the start."""
    padded = [[arb(0), arb(0)], [arb(0), arb(0)], *rows(series)]
    features = lifted(PLAIN, [padded[i] + padded[i + 1] for i in range(len(series) + 1)])
    return descended(features[:-1], rows(series), features[-1], 0.2, loops)


def of_chain(chains, start, loops):
    """σ undone on the states after the last known one, and put on what is learned."""
    known = len(start)
    following = [[leaky(number, 4) for number in row] for row in rows(chains[:, known])]
    answer = descended(rows(chains[:, known - 1]), following, rows(start)[-1], 0.7, loops)
    return [leaky(number, 0.25) for number in answer]


def regression(exact, *numbers):
    return lambda x, y, query, loops: exact(rows(x), rows(y), rows(query.unsqueeze(0))[0], *numbers, loops)


def of_representation(x, y, query, loops):
    return descended(lifted(PHI, x), y, lifted(PHI, [query])[0], 0.7, loops)


def drawn(how, *shapes):
    """Two problems: anywhere in [−1, 1], or at −1, 0 and 1."""
    generator = torch.Generator().manual_seed(1)
    data = [2 * torch.rand((2, *shape), generator=generator, dtype=f64) - 1 for shape in shapes]
    return [part if how == "inside" else (1.5 * part).round() for part in data]


PROBLEM = ((4, 2), (4, 1), (2,))
CHAIN = Domain(4, 2, 1.0, 4.0, 0.0)
SOLVABLE = Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=1e-3))
# What is built, data of which shapes, and the exact answers to one problem. Steps are about as long as they may be.
CASES = {
    "gradient descent": (
        lambda **how: LoopedGradientDescent(DOMAIN, step_size=1.0, outputs=2, **how),
        ((4, 2), (4, 2), (2,)),
        regression(descended, 1.0),
    ),
    "a representation": (
        lambda **how: LoopedGradientDescent(DOMAIN, step_size=0.7, representation=PHI, **how),
        PROBLEM,
        regression(of_representation),
    ),
    "newton": (lambda **how: LoopedNewton(SOLVABLE, **how), PROBLEM, regression(solved, start_scale(SOLVABLE))),
    "a decoder": (
        lambda **how: CausalLoopedGradientDescent(DOMAIN, step_size=0.999, **how),
        PROBLEM,
        regression(at_every_position, 0.999),
    ),
    "a series": (
        lambda **how: LoopedAutoRegression(Domain(6, 2, 2.0, 1.0, 0.0), PLAIN, order=2, step_size=0.2, **how),
        ((6, 2),),
        of_series,
    ),
    **{
        f"a chain, {known} known": (
            lambda **how: LoopedChainOfThought(CHAIN, depth=2, slope=0.25, step_size=0.7, **how),
            ((4, 3, 2), (known, 2)),
            of_chain,
        )
        for known in (1, 2)
    },
}


@pytest.mark.parametrize("dtype", [f64, f32])
@pytest.mark.parametrize("how", ["inside", "corners"])
@pytest.mark.parametrize("name", CASES)
def test_an_audit_is_the_distance_from_the_exact_iteration_and_the_certificate_is_above(name, how, dtype) -> None:
    build, shapes, exact = CASES[name]
    data = [part.to(dtype) for part in drawn(how, *shapes)]
    model = build(horizon=12, dtype=dtype)
    predictions = model.run(*data, loops=12).predictions
    for loops in (0, 1, 3, 12):
        run = model.run(*data, loops=loops)
        assert torch.equal(run.prediction, predictions[loops])
        observed = run.prediction.double().reshape(2, -1).tolist()
        with ball_arithmetic(512):
            answers = [exact(*problem, loops) for problem in zip(*data, strict=True)]
            both = zip([n for row in observed for n in row], [n for row in answers for n in row], strict=True)
            largest = max(float(abs(arb(number) - true)) for number, true in both)
        # Not below the largest distance of all problems of the batch and hardly above.
        assert largest * (1 - 1e-12) <= run.audit.bound <= largest * (1 + 1e-5)
        assert run.audit.bound <= run.certificate.bound
        if dtype == f64 and name != "newton":
            assert run.certificate.bound <= 1e-9


def test_many_loops_need_more_bits_and_get_them() -> None:
    """Newton's balls grow by a factor a loop: 90 loops on an ill-conditioned problem are still enclosed."""
    x = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 2**-12]], dtype=f64)
    y, query = torch.tensor([[1.0], [2.0]], dtype=f64), torch.tensor([[3.0, -1.0]], dtype=f64)

    def exact():
        return (arb_matrix(query) * newton(arb_matrix(x), arb_matrix(y), 1 / 16.0, 90)).entries()

    # x w = y: w = (1 − 4096, 4096).
    assert distance(exact, torch.tensor([3.0 * (1 - 4096) - 4096])) < 1e-6


@pytest.mark.parametrize(
    ("exact", "observed", "least", "most"),
    [
        (lambda: [arb(0), arb(0.5)], [0.0, 0.5], 0.0, 0.0),
        (lambda: [arb(1, 1.0)], [1.0], 1.0, 1.0 + 1e-8),  # a wide ball counts with its radius
        (lambda: [arb(1, 2.0 ** (-ctx.prec / 48))], [0.0], 1.0, 1 + 1e-6),  # bits are doubled until that is small
        (lambda: [arb(1) / arb(0)], [1.0], float("inf"), float("inf")),
    ],
)
def test_a_distance_is_enclosed(exact, observed, least, most) -> None:
    assert least <= distance(exact, torch.tensor(observed)) <= most
