"""For each contract a sound object, and for each check one that differs from it in what the check asks for."""

from dataclasses import replace

import torch

from emulon.algorithms import LinearRegression
from emulon.core.errors import EmulonError
from emulon.core.predictor import predict_at

f64 = torch.float64


def broken(base, **members):
    """A subclass with other members."""
    return type(f"Broken{base.__name__}", (base,), members)


class Descent(LinearRegression):
    steps: int = 5


def descent(weights):
    """Descent whose iterates are those of another algorithm, or of other data."""
    return broken(Descent, weights_in_turn=weights)


def in_turn(self, x, y):
    return Descent.weights_in_turn(self, x, y)


def shortened(self, x, y):
    if x.ndim >= 2 and y.ndim >= 1 and y.shape[-1] < x.shape[-2]:
        x = x[..., : y.shape[-1], :]
    return in_turn(self, x, y)


ALGORITHMS = {
    "weights_are_float64": broken(Descent, run=lambda self, x, y: Descent.run(self, x, y).float()),
    "weights_are_float64 of integers": descent(
        lambda self, x, y: in_turn(self, x, y if y.is_floating_point() else y / 2)
    ),
    "leading_dimensions_are_batches": descent(
        lambda self, x, y: (weights + 1e-6 * x.double().mean() for weights in in_turn(self, x, y))
    ),
    "repeated_calls_give_the_same_bits": descent(
        lambda self, x, y: (weights + 1e-9 * torch.rand(1, dtype=f64) for weights in in_turn(self, x, y))
    ),
    "inputs_are_left_alone": descent(lambda self, x, y: in_turn(self, x, y.mul_(1.5))),
    "run_is_the_last_iterate": broken(
        Descent, run=lambda self, x, y: replace(self, steps=self.steps + 1).iterates(x, y)[..., -1, :]
    ),
    "predictions_are_the_response_to_the_weights": broken(
        Descent, predict=lambda self, xs, ys, x_query: 2 * Descent.predict(self, xs, ys, x_query)
    ),
    "non_finite_data_are_refused": descent(
        lambda self, x, y: in_turn(self, x.nan_to_num(posinf=0.0), y.nan_to_num(posinf=0.0))
    ),
    "wrong_shapes_are_refused": descent(shortened),
    "wrong_shapes_are_refused of queries": broken(
        Descent, predict=lambda self, xs, ys, x_query: self.run(xs, ys).sum() * x_query.sum()
    ),
    "steps_are_counted": descent(lambda self, x, y: LinearRegression(steps=3).weights_in_turn(x, y)),
    "steps_are_counted from the first": descent(
        lambda self, x, y: LinearRegression(steps=max(self.steps, 1)).weights_in_turn(x, y)
    ),
    # It has the default step size by its field, and takes one that is far too long.
    "objective_never_increases": descent(
        lambda self, x, y: LinearRegression(self.steps, step_size=2.0).weights_in_turn(x, y)
    ),
}


class Mean:
    """The mean target: invariant to everything, and NaN where anything is."""

    examples = tuple(range(1, 9))
    several_queries = True

    def predict(self, xs, ys, x_query):
        if xs.shape[-2] > 8:
            raise EmulonError("at most 8 examples")
        seen = ys.mean(dim=-1) + 0 * xs.sum(dim=(-1, -2))
        return (seen.unsqueeze(-1) if x_query.ndim == xs.ndim else seen) + 0 * x_query.sum(dim=-1)

    def predict_prefixes(self, xs, ys):
        first = torch.zeros(len(xs), 1, dtype=f64)
        return torch.cat([first, predict_at(FunctionOf(self), xs, ys, range(1, xs.shape[1]))], dim=-1)


class FunctionOf:
    def __init__(self, predictor):
        self.predict = predictor.predict


def mean(change):
    """The mean target plus a function of the data."""
    return broken(
        Mean, predict=lambda self, xs, ys, x_query: Mean.predict(self, xs, ys, x_query) + change(xs, ys, x_query)
    )


def of_all_queries(xs, ys, x_query):
    return x_query.mean(dim=(-1, -2)).unsqueeze(-1) if x_query.ndim == xs.ndim else 0.0


def of_the_last(xs, ys, x_query):
    return ys[..., -1:] if x_query.ndim == xs.ndim else ys[..., -1]


PREDICTORS = {
    "one_number_a_dataset": broken(
        Mean, predict=lambda self, xs, ys, x_query: Mean.predict(self, xs, ys, x_query).unsqueeze(-1)
    ),
    "leading_dimensions_are_batches": mean(lambda xs, ys, x_query: ys.mean()),
    "repeated_calls_give_the_same_bits": mean(lambda xs, ys, x_query: torch.rand(1, dtype=f64)),
    "inputs_are_left_alone": mean(lambda xs, ys, x_query: 0 * ys.copy_(ys.sort(dim=-1).values).sum()),
    # It never looks at x, so that NaN there looks like nothing.
    "nan_is_refused_or_shown": broken(
        Mean, predict=lambda self, xs, ys, x_query: Mean.predict(self, xs.nan_to_num(), ys, x_query.nan_to_num())
    ),
    "several_queries_are_answered_as_each_alone": mean(of_all_queries),
    "prefixes_are_answered_as_each_alone": broken(Mean, predict_prefixes=lambda self, xs, ys: ys.clone()),
    "other_numbers_of_examples_are_refused": broken(
        Mean, predict=lambda self, xs, ys, x_query: ys.mean(dim=-1) + 0 * (xs.sum(dim=(-1, -2)) + x_query.sum(dim=-1))
    ),
    "order_does_not_matter": mean(of_the_last),
    "rotations_do_not_matter": mean(lambda xs, ys, x_query: x_query[..., 0]),
    "answers_scale_with_targets": mean(lambda xs, ys, x_query: x_query[..., 0]),
}
