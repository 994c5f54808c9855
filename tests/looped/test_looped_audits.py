"""The audit of a run is its distance from the exact iteration: compared with rational arithmetic, step by step."""

from fractions import Fraction

import pytest
import torch
from flint import arb, ctx

from emulon.certify import Domain, Spectrum
from emulon.expressions.evaluation import arb_matrix
from emulon.looped import (
    CausalLoopedGradientDescent,
    LoopedAutoRegression,
    LoopedChainOfThought,
    LoopedGradientDescent,
    LoopedNewton,
    RepresentationNetwork,
)
from emulon.looped.newton import start_scale
from emulon.looped.transformer import distance, newton

Matrix = list[list[Fraction]]
LOOPS = 3


def rational(tensor: torch.Tensor) -> Matrix:
    return [[Fraction(number) for number in row] for row in tensor.double().tolist()]


def times(a: Matrix, b: Matrix) -> Matrix:
    return [
        [sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in zip(*b, strict=True)]
        for row in a
    ]


def plus(a: Matrix, b: Matrix, scale: Fraction = Fraction(1)) -> Matrix:
    return [[x + scale * y for x, y in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)]


def turned(a: Matrix) -> Matrix:
    return [list(column) for column in zip(*a, strict=True)]


def descended(x: Matrix, y: Matrix, query: Matrix, step: float) -> Matrix:
    """query·A after so many plain gradient steps."""
    weights = [[Fraction(0)] * len(y[0]) for _ in x[0]]
    for _ in range(LOOPS):
        gradient = times(turned(x), plus(times(x, weights), y, Fraction(-1)))
        weights = plus(weights, gradient, -Fraction(step) / len(x))
    return times(query, weights)


def inverted(x: Matrix, y: Matrix, query: Matrix, scale: float, ridge: float | None = None) -> Matrix:
    """query·M·Xᵀy after so many Newton–Schulz steps; of means and with a ridge if there is one."""
    gram, moment = times(turned(x), x), times(turned(x), y)
    if ridge is not None:
        gram = [[g / len(x) + Fraction(ridge) * (i == j) for j, g in enumerate(row)] for i, row in enumerate(gram)]
        moment = [[m / len(x) for m in row] for row in moment]
    inverse = [[Fraction(scale) * g for g in row] for row in gram]
    for _ in range(LOOPS):
        inverse = plus(plus(inverse, inverse), times(times(inverse, gram), inverse), Fraction(-1))
    return times(times(query, inverse), moment)


def bent(values: Matrix, slope: Fraction) -> Matrix:
    return [[v if v > 0 else slope * v for v in row] for row in values]


def problem(seed: int, samples: int = 4, features: int = 2, outputs: int = 1):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, samples, features), (2, samples, outputs), (2, features))
    return [2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1 for shape in shapes]


DOMAIN = Domain(4, 2, x=1.0, y=1.0, w=0.0)


def audited(run, exact: list[Matrix]) -> None:
    """The bound is the largest distance of all problems of the batch, not below it and hardly above."""
    observed = run.prediction.double().reshape(len(exact), -1).tolist()
    largest = max(
        abs(Fraction(number) - value)
        for answer, values in zip(observed, exact, strict=True)
        for number, value in zip(answer, [v for row in values for v in row], strict=True)
    )
    assert largest > 0
    assert largest <= Fraction(run.audit.bound) <= largest * (1 + Fraction(1, 10**5))


def each(xs, ys, x_query):
    return [tuple(map(rational, (x, y, q.unsqueeze(0)))) for x, y, q in zip(xs, ys, x_query, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradient_descent(dtype) -> None:
    data = [part.to(dtype) for part in problem(0, outputs=2)]
    model = LoopedGradientDescent(DOMAIN, step_size=0.7, outputs=2, horizon=LOOPS, dtype=dtype)
    audited(model.run(*data, loops=LOOPS), [descended(*parts, 0.7) for parts in each(*data)])


def test_gradient_descent_on_a_representation() -> None:
    weight, bias = torch.tensor([[0.5, -0.3], [0.2, 0.4]]).double(), torch.tensor([0.1, -0.2]).double()
    phi = RepresentationNetwork([weight], [bias], slope=0.1, bound=1.0)
    model = LoopedGradientDescent(DOMAIN, step_size=0.7, representation=phi, horizon=LOOPS)
    data, wanted = problem(1), []

    def lifted(rows: Matrix) -> Matrix:
        out = times(rows, turned(rational(weight)))
        return bent(plus(out, rational(bias.unsqueeze(0)) * len(out)), Fraction(0.1))

    for x, y, query in each(*data):
        wanted.append(descended(lifted(x), y, lifted(query), 0.7))
    audited(model.run(*data, loops=LOOPS), wanted)


def test_newton() -> None:
    data = problem(2)
    model = LoopedNewton(Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=1e-3)), horizon=LOOPS)
    wanted = [inverted(*parts, start_scale(model.domain)) for parts in each(*data)]
    audited(model.run(*data, loops=LOOPS), wanted)


def at_every_position(x: Matrix, y: Matrix, query: Matrix, answer) -> Matrix:
    points = [*x, query[0]]
    return [[Fraction(0)], *(answer(x[:i], y[:i], [points[i]])[0] for i in range(1, len(points)))]


def test_decoders() -> None:
    data = problem(3)
    descent = CausalLoopedGradientDescent(DOMAIN, step_size=0.7, horizon=LOOPS)
    wanted = [at_every_position(*parts, lambda *prefix: descended(*prefix, 0.7)) for parts in each(*data)]
    audited(descent.run(*data, loops=LOOPS), wanted)


def test_a_series() -> None:
    series = problem(4, samples=6, features=1)[0]
    phi = RepresentationNetwork([torch.tensor([[0.5, 0.25], [-0.5, 1.0]]).double()], slope=0.5, bound=1.0)
    model = LoopedAutoRegression(Domain(6, 2, 2.0, 1.0, 0.0), phi, order=2, step_size=0.2, horizon=LOOPS)
    wanted = []
    for one in series:
        padded = [0.0, 0.0, *one.flatten().tolist()]
        windows = rational(torch.tensor([padded[i : i + 2] for i in range(7)], dtype=torch.float64))
        features = bent(times(windows, turned(rational(phi.level(0)[0]))), Fraction(1, 2))
        wanted.append(descended(features[:-1], rational(one), features[-1:], 0.2))
    audited(model.run(series, loops=LOOPS), wanted)


def test_a_chain() -> None:
    chains, _, start = problem(5, samples=12)
    chains, start = chains.reshape(2, 4, 3, 2), start.unsqueeze(-2)
    model = LoopedChainOfThought(Domain(4, 2, 1.0, 4.0, 0.0), depth=2, slope=0.25, step_size=0.7, horizon=LOOPS)
    wanted = []
    for states, first in zip(chains, start, strict=True):
        labels = bent(rational(states[:, 1]), Fraction(4))
        answer = descended(rational(states[:, 0]), labels, rational(first), 0.7)
        wanted.append(bent(answer, Fraction(1, 4)))
    audited(model.run(chains, start, loops=LOOPS), wanted)


def test_many_loops_need_more_bits_and_get_them() -> None:
    """Newton's balls grow by a factor a loop: 40 loops on an ill-conditioned problem are still enclosed."""
    x = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 2**-12]], dtype=torch.float64)
    y, query = torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([[3.0, -1.0]], dtype=torch.float64)
    solution = Fraction(2**12)  # x w = y: w = (1 − 4096, 4096)
    target = 3 * (1 - solution) - solution

    def exact():
        return (arb_matrix(query) * newton(arb_matrix(x), arb_matrix(y), 1 / 16.0, 90)).entries()

    assert distance(exact, torch.tensor([float(target)])) < 1e-6


def test_an_exact_answer_is_at_distance_zero() -> None:
    assert distance(lambda: [arb(0), arb(0.5)], torch.tensor([0.0, 0.5])) == 0.0


def test_a_wide_ball_around_the_answer_counts_with_its_radius() -> None:
    assert 1.0 <= distance(lambda: [arb(1, 1.0)], torch.tensor([1.0])) < 1.0 + 1e-8


def test_bits_are_doubled_until_a_radius_is_a_millionth_of_the_distance() -> None:
    assert distance(lambda: [arb(1, 2.0 ** (-ctx.prec / 48))], torch.tensor([0.0])) < 1 + 1e-6


def test_what_cannot_be_enclosed_is_infinitely_far() -> None:
    assert distance(lambda: [arb(1) / arb(0)], torch.tensor([1.0])) == float("inf")
