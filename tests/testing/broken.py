"""For each contract a sound object, and for each check one that differs from it in what the check asks for."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from emulon.algorithms import LinearRegression
from emulon.certify import Certificate
from emulon.certify.domain import require_shape, require_within
from emulon.core.errors import BadShape, EmulonError
from emulon.core.predictor import predict_at
from emulon.tasks import Linear, at_step
from emulon.tasks.task import Datasets
from emulon.testing import Input

f64 = torch.float64


def broken(base, **members):
    """A subclass with other members."""
    return type(f"Broken{base.__name__}", (base,), members)


def exact_double(x, w):
    return 2 * x * w.unsqueeze(-2)


class Doubled(nn.Module):
    """(x, w) ↦ 2·x·w, entry by entry: the smallest thing that keeps a construction's contract."""

    inputs = {"x": Input((4, 3), 2.0), "w": Input((3,), 1.0)}  # noqa: RUF012 (never changed)
    scope, calls = "domain", 0

    def __init__(self):
        super().__init__()
        self.register_buffer("two", torch.tensor(2.0, dtype=f64))

    @property
    def certificate(self):
        return Certificate({"rounding": 1e-12}, f64, scope=self.scope)

    def extra_repr(self):
        return str(self.certificate)

    def require_shapes(self, x, w):
        require_shape(x, "x", 4, 3)
        require_shape(w, "w", 3)
        if x.ndim > 2 and w.ndim > 1:
            try:
                torch.broadcast_shapes(x.shape[:-2], w.shape[:-1])
            except RuntimeError:
                raise BadShape("the batches of x and w do not fit together") from None

    def require_bounds(self, x, w):
        require_within(2.0, x=x)
        require_within(1.0, w=w)

    def forward(self, x, w):
        self.require_shapes(x, w)
        self.require_bounds(x, w)
        return self.two * x * w.unsqueeze(-2)


def doubled(change):
    """Doubled, its output changed by a function of the module and its inputs."""
    return broken(Doubled, forward=lambda self, x, w: Doubled.forward(self, x, w) + change(self, x, w))


def trainable():
    module = Doubled()
    module.extra = nn.Parameter(torch.zeros(1, dtype=f64))
    return module


def counted(module, x, w):
    module.calls += 1
    return module.calls * 1e-14


class OneBatchShape(Doubled):
    def forward(self, x, w):
        if x.shape[:-2] != w.shape[:-1]:
            raise BadShape("x and w must have one batch shape")
        return super().forward(x, w)


unbounded = broken(Doubled, require_bounds=lambda self, x, w: None)
shapeless = broken(Doubled, require_shapes=lambda self, x, w: None)
CONSTRUCTIONS = {
    "weights_are_frozen": trainable,
    "certificate_is_finite_and_for_the_domain": broken(Doubled, scope="run"),
    "repr_shows_the_bound": broken(Doubled, extra_repr=lambda self: ""),
    "certificate_holds_inside_the_domain": doubled(lambda self, x, w: 1e-6 * (x.abs() < 1.9)),
    "certificate_holds_at_the_edges": doubled(lambda self, x, w: 1e-6 * (x.abs() == 2.0)),
    "dtype_is_the_certificates": broken(Doubled, forward=lambda self, x, w: Doubled.forward(self, x, w).float()),
    "repeated_calls_give_the_same_bits": doubled(counted),
    "inputs_are_left_alone": doubled(lambda self, x, w: 0 * w.copy_(w / 2).sum()),
    "leading_dimensions_are_batches": doubled(lambda self, x, w: x.mean() * 1e-10),
    "batch_dimensions_broadcast": OneBatchShape,
    "non_finite_inputs_are_refused": unbounded,
    "inputs_outside_the_domain_are_refused": unbounded,
    "wrong_shapes_are_refused": shapeless,
    "batches_that_do_not_fit_are_refused": shapeless,
}


@dataclass(frozen=True)
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
    "integers_are_data_too": descent(lambda self, x, y: in_turn(self, x, y if y.is_floating_point() else y / 2)),
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
    "wrong_queries_are_refused": broken(
        Descent, predict=lambda self, xs, ys, x_query: self.run(xs, ys).sum() * x_query.sum()
    ),
    "steps_are_counted": descent(lambda self, x, y: LinearRegression(steps=3).weights_in_turn(x, y)),
    "no_steps_leave_the_first_iterate": descent(
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


@dataclass(frozen=True)
class Lines(Linear):
    """Linear functions, sound."""

    features: int = 4
    points: int = 7
    noise: float = 0.25


@dataclass(frozen=True)
class Unreadable(Lines):
    """An option that is not kept as it was written."""

    prior: float = 1.5

    def __post_init__(self):
        object.__setattr__(self, "prior", self.prior + 1)


def lines(**members):
    return broken(Lines, **members)


def sampled(change):
    """Samples drawn from a changed generator, or with other live features."""
    return lines(sample=lambda self, generator, batch, live=None: Lines.sample(self, *change(generator, batch, live)))


def in_float32(self, generator, batch, **options):
    drawn = Lines.datasets(self, generator, batch, **options)
    return Datasets(drawn.xs.float(), drawn.ys.float(), drawn.truth.float())


def held_out(generator_of):
    return lines(
        held_out=lambda self, seed, batch, points: self.datasets(generator_of(seed), batch, points=points, dtype=f64)
    )


TASKS = {
    "a_batch_is_a_function_of_its_generator": lines(
        inputs=lambda self, generator, batch, points, dtype=torch.float32: torch.randn(
            batch, points, self.features, dtype=dtype
        )
    ),
    "other_seeds_and_steps_give_other_batches": sampled(
        lambda generator, batch, live: (torch.Generator().manual_seed(0), batch, live)
    ),
    "sizes_are_as_declared": lines(tokens=property(lambda self: 2 * self.points)),
    "numbers_are_finite": lines(values=lambda self, generator, xs: Lines.values(self, generator, xs) / 0),
    "every_baseline_has_an_error_for_each_point_of_the_curve": lines(
        baselines=lambda self, prompts: {"ols": torch.zeros(3)}
    ),
    "all_features_live_is_no_curriculum": sampled(
        lambda generator, batch, live: (generator, batch, None if live is None else live / 2)
    ),
    "dead_features_are_not_shown": sampled(lambda generator, batch, live: (generator, batch)),
    "options_are_read_back_from_a_line": Unreadable,
    "options_without_sense_are_refused": lines(__post_init__=lambda self: None),
    "datasets_have_the_points_and_the_dtype_asked_for": lines(datasets=in_float32),
    "prompts_are_made_of_the_datasets": sampled(
        lambda generator, batch, live: (generator.manual_seed(generator.initial_seed() + 1), batch, live)
    ),
    "truth_has_no_noise": lines(
        values=lambda self, generator, xs: Lines.values(self, generator, xs) * (1 + self.noise)
    ),
    "held_out_data_are_a_function_of_the_seed": held_out(lambda seed: torch.Generator().manual_seed(torch.seed())),
    "held_out_data_are_in_no_training_batch": held_out(lambda seed: at_step(torch.Generator(), seed, 0)),
    "str_says_what_it_is": lines(__str__=lambda self: "a task"),
}
