"""For each contract a sound object, and for each check one that differs from it in what breaks the promise."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from emulon.algorithms import LinearRegression
from emulon.certify import Certificate
from emulon.certify.domain import require_shape, require_within
from emulon.core.errors import BadShape, EmulonError
from emulon.core.predictor import predict_at
from emulon.tasks import Linear, at_step
from emulon.tasks.prompts import Datasets
from emulon.testing import Input

f64 = torch.float64


def exact_double(x, w):
    return 2 * x * w.unsqueeze(-2)


class Doubled(nn.Module):
    """(x, w) ↦ 2·x·w, entry by entry: the smallest thing that keeps a construction's contract."""

    inputs = {"x": Input((4, 3), 2.0), "w": Input((3,), 1.0)}  # noqa: RUF012 (never changed)
    terms = {"rounding": 1e-12}  # noqa: RUF012 (never changed)
    scope = "domain"

    def __init__(self):
        super().__init__()
        self.register_buffer("two", torch.tensor(2.0, dtype=f64))

    @property
    def certificate(self):
        return Certificate(self.terms, f64, scope=self.scope)

    def extra_repr(self):
        return str(self.certificate)

    def checked(self, x, w):
        require_shape(x, "x", 4, 3)
        require_shape(w, "w", 3)
        if x.ndim > 2 and w.ndim > 1:
            try:
                torch.broadcast_shapes(x.shape[:-2], w.shape[:-1])
            except RuntimeError:
                raise BadShape("the batches of x and w do not fit together") from None
        require_within(2.0, x=x)
        require_within(1.0, w=w)

    def forward(self, x, w):
        self.checked(x, w)
        return self.two * x * w.unsqueeze(-2)


class Trainable(Doubled):
    def __init__(self):
        super().__init__()
        self.extra = nn.Parameter(torch.zeros(1, dtype=f64))


class ThisRunOnly(Doubled):
    scope = "run"


class Silent(Doubled):
    def extra_repr(self):
        return ""


class Off(Doubled):
    """By more than it promises, away from the corners."""

    def forward(self, x, w):
        return super().forward(x, w) + 1e-6 * (x.abs() < 1.9)


class OffAtTheEdge(Doubled):
    def forward(self, x, w):
        return super().forward(x, w) + 1e-6 * (x.abs() == 2.0)


class Single(Doubled):
    def forward(self, x, w):
        return super().forward(x, w).float()


class Forgetful(Doubled):
    """The calls before it change the answer."""

    calls = 0

    def forward(self, x, w):
        self.calls += 1
        return super().forward(x, w) + self.calls * 1e-14


class Writing(Doubled):
    def forward(self, x, w):
        return super().forward(x, w.mul_(1.0).copy_(w / 2)) * 2


class Mixing(Doubled):
    """One element of a batch sees the others."""

    def forward(self, x, w):
        return super().forward(x, w) + x.mean() * 1e-10


class Stiff(Doubled):
    """Takes batches, but not one input for a batch of the other."""

    def forward(self, x, w):
        if x.shape[:-2] != w.shape[:-1]:
            raise BadShape("x and w must have one batch shape")
        return super().forward(x, w)


class Trusting(Doubled):
    def checked(self, x, w):
        require_shape(x, "x", 4, 3)
        require_shape(w, "w", 3)


class Shapeless(Doubled):
    def checked(self, x, w):
        require_within(2.0, x=x)
        require_within(1.0, w=w)


CONSTRUCTIONS = {
    "weights_are_frozen": Trainable,
    "certificate_is_a_finite_promise_for_the_domain": ThisRunOnly,
    "repr_shows_the_bound": Silent,
    "inside_the_domain_the_promise_holds": Off,
    "at_the_edges_the_promise_holds": OffAtTheEdge,
    "dtype_is_the_certificates": Single,
    "repeated_calls_give_the_same_bits": Forgetful,
    "inputs_are_left_alone": Writing,
    "leading_dimensions_are_batches": Mixing,
    "batch_dimensions_broadcast": Stiff,
    "non_finite_inputs_are_refused": Trusting,
    "inputs_outside_the_domain_are_refused": Trusting,
    "wrong_shapes_are_refused": Shapeless,
    "batches_that_do_not_fit_are_refused": Shapeless,
}


@dataclass(frozen=True)
class Descent(LinearRegression):
    steps: int = 5


class InSingle(Descent):
    def run(self, x, y):
        return super().run(x, y).float()


class NoIntegers(Descent):
    def weights_in_turn(self, x, y):
        return super().weights_in_turn(x, y if y.is_floating_point() else y / 2)


class Crowded(Descent):
    """The data of the whole batch have a part in every element's weights."""

    def weights_in_turn(self, x, y):
        return (weights + 1e-6 * x.double().mean() for weights in super().weights_in_turn(x, y))


class OneMore(Descent):
    def run(self, x, y):
        return replace(LinearRegression(), steps=self.steps + 1).run(x, y)


class Loud(Descent):
    def predict(self, xs, ys, x_query):
        return 2 * super().predict(xs, ys, x_query)


class Imputing(Descent):
    def weights_in_turn(self, x, y):
        return super().weights_in_turn(x.nan_to_num(posinf=0.0), y.nan_to_num(posinf=0.0))


class Cutting(Descent):
    def weights_in_turn(self, x, y):
        if x.ndim >= 2 and y.ndim >= 1 and y.shape[-1] < x.shape[-2]:
            x = x[..., : y.shape[-1], :]
        return super().weights_in_turn(x, y)


class AnyQuery(Descent):
    def predict(self, xs, ys, x_query):
        return self.run(xs, ys).sum() * x_query.sum()


class Wandering(Descent):
    def weights_in_turn(self, x, y):
        return (weights + 1e-9 * torch.rand(1, dtype=f64) for weights in super().weights_in_turn(x, y))


class Uncounted(Descent):
    def weights_in_turn(self, x, y):
        return LinearRegression(steps=3).weights_in_turn(x, y)


class NeverStill(Descent):
    def weights_in_turn(self, x, y):
        return LinearRegression(steps=max(self.steps, 1)).weights_in_turn(x, y)


class Overshooting(Descent):
    """Says that its step size is the default, and takes one that is far too long."""

    def weights_in_turn(self, x, y):
        return LinearRegression(self.steps, step_size=2.0).weights_in_turn(x, y)


ALGORITHMS = {
    "weights_are_float64": InSingle,
    "integers_are_data_too": NoIntegers,
    "leading_dimensions_are_batches": Crowded,
    "run_is_the_last_iterate": OneMore,
    "predictions_are_the_response_to_the_weights": Loud,
    "non_finite_data_are_refused": Imputing,
    "wrong_shapes_are_refused": Cutting,
    "wrong_queries_are_refused": AnyQuery,
    "repeated_runs_give_the_same_bits": Wandering,
    "steps_are_counted": Uncounted,
    "no_steps_leave_the_first_iterate": NeverStill,
    "objective_never_increases": Overshooting,
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


class Column(Mean):
    def predict(self, xs, ys, x_query):
        return super().predict(xs, ys, x_query).unsqueeze(-1)


class WholeBatch(Mean):
    def predict(self, xs, ys, x_query):
        return super().predict(xs, ys, x_query) + ys.mean()


class Dice(Mean):
    def predict(self, xs, ys, x_query):
        return super().predict(xs, ys, x_query) + torch.rand(1, dtype=f64)


class Sorting(Mean):
    def predict(self, xs, ys, x_query):
        ys.copy_(ys.sort(dim=-1).values)
        return super().predict(xs, ys, x_query)


class Blind(Mean):
    """Never looks at x, so that NaN there looks like nothing."""

    def predict(self, xs, ys, x_query):
        return super().predict(xs.nan_to_num(), ys, x_query.nan_to_num())


class Nosy(Mean):
    """An answer depends on the other queries."""

    def predict(self, xs, ys, x_query):
        several = x_query.mean(dim=(-1, -2)).unsqueeze(-1) if x_query.ndim == xs.ndim else 0.0
        return super().predict(xs, ys, x_query) + several


class Peeping(Mean):
    """Reads the y that it is asked for."""

    def predict_prefixes(self, xs, ys):
        return ys.clone()


class AnyNumber(Mean):
    def predict(self, xs, ys, x_query):
        return ys.mean(dim=-1) + 0 * (xs.sum(dim=(-1, -2)) + x_query.sum(dim=-1))


class LastWord(Mean):
    def predict(self, xs, ys, x_query):
        return super().predict(xs, ys, x_query) + (ys[..., -1:] if x_query.ndim == xs.ndim else ys[..., -1])


class FirstFeature(Mean):
    def predict(self, xs, ys, x_query):
        return super().predict(xs, ys, x_query) + x_query[..., 0]


PREDICTORS = {
    "one_number_a_dataset": Column,
    "leading_dimensions_are_batches": WholeBatch,
    "repeated_calls_give_the_same_bits": Dice,
    "inputs_are_left_alone": Sorting,
    "nan_is_refused_or_shown": Blind,
    "several_queries_are_answered_as_each_alone": Nosy,
    "prefixes_are_answered_as_each_alone": Peeping,
    "other_numbers_of_examples_are_refused": AnyNumber,
    "order_does_not_matter": LastWord,
    "rotations_do_not_matter": FirstFeature,
    "answers_scale_with_targets": FirstFeature,
}


@dataclass(frozen=True)
class Lines(Linear):
    """Linear functions; what breaks a promise is below."""

    features: int = 4
    points: int = 7
    noise: float = 0.25


@dataclass(frozen=True)
class Ambient(Lines):
    def inputs(self, generator, batch, points, dtype=torch.float32):
        return torch.randn(batch, points, self.features, dtype=dtype)


@dataclass(frozen=True)
class Standing(Lines):
    def sample(self, generator, batch, live=None):
        return super().sample(torch.Generator().manual_seed(0), batch, live)


@dataclass(frozen=True)
class Longer(Lines):
    @property
    def tokens(self):
        return 2 * self.points


@dataclass(frozen=True)
class Endless(Lines):
    def values(self, generator, xs):
        return super().values(generator, xs) / 0


@dataclass(frozen=True)
class WithoutZero(Lines):
    def baselines(self, prompts):
        return {"ols": torch.zeros(3)}


@dataclass(frozen=True)
class AlwaysCurriculum(Lines):
    def sample(self, generator, batch, live=None):
        return super().sample(generator, batch, None if live is None else live / 2)


@dataclass(frozen=True)
class Undying(Lines):
    def sample(self, generator, batch, live=None):
        return super().sample(generator, batch)


@dataclass(frozen=True)
class Unreadable(Lines):
    """Forgets what was written for it."""

    prior: float = 1.5

    def __post_init__(self):
        object.__setattr__(self, "prior", self.prior + 1)


@dataclass(frozen=True)
class Careless(Lines):
    def __post_init__(self):
        pass


@dataclass(frozen=True)
class SingleOnly(Lines):
    def datasets(self, generator, batch, **options):
        drawn = super().datasets(generator, batch, **options)
        return Datasets(drawn.xs.float(), drawn.ys.float(), drawn.truth.float())


@dataclass(frozen=True)
class OwnPrompts(Lines):
    def sample(self, generator, batch, live=None):
        generator.manual_seed(generator.initial_seed() + 1)
        return super().sample(generator, batch, live)


@dataclass(frozen=True)
class Noisy(Lines):
    def values(self, generator, xs):
        return super().values(generator, xs) * (1 + self.noise)


@dataclass(frozen=True)
class HeldOutAnew(Lines):
    def held_out(self, seed, batch, points):
        return self.datasets(torch.Generator().manual_seed(torch.seed()), batch, points=points, dtype=f64)


@dataclass(frozen=True)
class SeenBefore(Lines):
    """Holds out what the first step of training draws."""

    def held_out(self, seed, batch, points):
        return self.datasets(at_step(torch.Generator(), seed, 0), batch, points=points, dtype=f64)


@dataclass(frozen=True)
class Nameless(Lines):
    def __str__(self):
        return "a task"


TASKS = {
    "a_batch_is_a_function_of_its_generator": Ambient,
    "other_seeds_and_steps_give_other_batches": Standing,
    "sizes_are_as_declared": Longer,
    "numbers_are_finite": Endless,
    "every_baseline_has_an_error_for_each_point_of_the_curve": WithoutZero,
    "all_features_live_is_no_curriculum": AlwaysCurriculum,
    "dead_features_are_not_shown": Undying,
    "options_are_read_back_from_a_line": Unreadable,
    "options_without_sense_are_refused": Careless,
    "datasets_have_the_points_and_the_dtype_asked_for": SingleOnly,
    "prompts_are_made_of_the_datasets": OwnPrompts,
    "truth_has_no_noise": Noisy,
    "held_out_data_are_a_function_of_the_seed": HeldOutAnew,
    "held_out_data_are_in_no_training_batch": SeenBefore,
    "str_says_what_it_is": Nameless,
}
