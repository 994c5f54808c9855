"""Every reference is identified as itself; what is none of them is not."""

import pytest
import torch
from plain_functions import nobodies, references
from sklearn.linear_model import HuberRegressor

from emulon.algorithms import LeastSquares, NearestNeighbours, RidgeRegression, TaskMixture
from emulon.core.errors import EmulonError
from emulon.identification import identify
from emulon.identification.identify import rank
from emulon.identification.references import REFERENCES, Reference
from emulon.tasks import Datasets, Linear, TaskSet

SIZE = {"datasets": 32, "points": 11}


@pytest.mark.parametrize("seed", range(6))
def test_every_reference_is_identified_as_itself_with_its_parameters(seed: int):
    task = Linear(4, noise=0.5 * (seed % 2))
    for name, parameters, function in list(references(seed))[seed % 3 :: 3]:  # each on every third seed
        found = identify(function, task, seed=seed, **SIZE)
        assert found.algorithm == name, f"{name} {parameters}: {found}"
        for parameter, value in parameters.items():
            assert found.parameters[parameter] == pytest.approx(value, rel=0.1), f"{name} {parameters}: {found}"


def test_constants_are_named_and_random_numbers_and_fixed_weights_are_none_of_these():
    for seed in range(3):
        for what, function in nobodies(seed):
            found = identify(function, Linear(4, noise=0.5 * (seed % 2)), seed=seed, **SIZE)
            if what.startswith("constant "):
                value = float(what[9:])
                assert found.algorithm == "constant" and found.parameters == {"value": pytest.approx(value)}
                assert str(found) == f"constant: the answer is {value:.4g}, whatever the examples and the query"
                assert found["zero"].unexplained.value == pytest.approx(1)
            else:
                assert found.algorithm == "none of these" and not found.parameters, f"{what}: {found}"
                assert str(found).startswith("none of these: the nearest, ")


def test_what_coincides_by_nature_is_reported_as_indistinguishable_and_the_simplest_is_named():
    ols = identify(LeastSquares(), Linear(4, noise=0.5), **SIZE)
    assert ols.algorithm == "ols" and {"ridge", "ridge on the mean"} <= set(ols.ties)
    assert ols["ridge"].parameters["ridge"] < 1e-9
    # Posterior weights charge for parameters: both are exact, and 16 datasets charge √16 for one.
    assert sum(match.weight for match in ols.ranking) == pytest.approx(1)
    assert ols["ols"].weight == pytest.approx(4 * ols["ridge"].weight, rel=1e-9)
    assert ols["ridge with intercept"].weight < 1e-6
    one = identify(NearestNeighbours(1), Linear(4), **SIZE)
    assert one.algorithm == "knn" and one.ties == ("weighted knn",)
    assert "indistinguishable from weighted knn(neighbours=1)" in str(one)
    # With one number of examples a step on the mean is n times smaller than one on the sum: only the name differs.
    _, parameters, function = next(case for case in references(3) if case[0] == "gradient descent")
    step = identify(function, Linear(4, noise=0.5), datasets=64, points=11, counts=[10])
    assert step.algorithm == "gradient descent" and "gradient descent on the sum" in step.ties
    assert step["gradient descent on the sum"].parameters["step_size"] == pytest.approx(parameters["step_size"] / 10)


def test_who_knows_a_finite_set_of_tasks_is_told_from_who_does_not():
    task = TaskSet(4, noise=0.3, tasks=8)
    mixture = TaskMixture(task.vectors.numpy(), 0.6)
    knows, does_not = (identify(one, task, **SIZE) for one in (mixture, RidgeRegression(0.09)))
    assert knows.algorithm == "task mixture" and knows.parameters["noise"] == pytest.approx(0.6, rel=1e-3)
    assert does_not.algorithm == "ridge" and does_not["task mixture"].unexplained.low > 0.01


def disturbed(share: float):
    """Ridge regression, and a part of its variance that has nothing to do with any algorithm."""
    generator = torch.Generator().manual_seed(0)

    def predict(xs, ys, x_query):
        right = RidgeRegression(1.0).predict(xs, ys, x_query)
        return right + (share * right.var()) ** 0.5 * torch.randn(len(xs), generator=generator, dtype=torch.float64)

    return predict


def test_an_imperfect_predictor_is_named_while_it_is_near():
    found = identify(disturbed(0.02), Linear(4, noise=0.5), points=20)
    assert found.algorithm == "ridge" and found.parameters["ridge"] == pytest.approx(1.0, rel=0.1)
    interval = found.nearest.unexplained
    assert interval.low < 0.02 < interval.high and interval.high - interval.low < 0.01
    assert identify(disturbed(0.15), Linear(4, noise=0.5), points=20).algorithm == "none of these"


def test_where_kinds_lie_close_together_less_may_be_left_for_one_to_be_named():
    """Between two kinds a tenth of the variance apart: named on one's side of the middle, and not in the middle."""
    ols = REFERENCES["ols"]

    def other(prefixes, integers, continuous):
        return ols.respond(prefixes, integers, continuous) + 0.3 * prefixes.queries[..., 0]

    def between(share):
        return lambda xs, ys, q: LeastSquares().predict(xs, ys, q) + share * 0.3 * q[..., 0]

    kinds = [ols, Reference("beside", "beside", other)]
    found = [identify(between(share), Linear(4), references=kinds, **SIZE) for share in (0.2, 0.5, 0.8)]
    assert [one.algorithm for one in found] == ["ols", "none of these", "beside"]
    assert max(one.nearest.unexplained.high for one in found) < 0.1


def test_what_is_left_is_measured_where_nothing_was_fitted():
    """Noise on the first half of the datasets is in the fit and not in the measure; on the second half it is."""

    def noisy(rows):
        def predict(xs, ys, q):
            said = LeastSquares().predict(xs, ys, q)
            said[rows] += torch.randn(len(said[rows]), generator=torch.Generator().manual_seed(len(xs[0]))) / 2
            return said

        return predict

    ols = [REFERENCES["ols"]]
    first, second = (
        identify(noisy(rows), Linear(4, noise=0.5), references=ols, **SIZE).nearest.unexplained.value
        for rows in (slice(0, 16), slice(16, None))
    )
    assert first < 1e-20 and second > 1e-3


def test_the_scale_of_the_data_does_not_matter():
    class Scaled(Linear):
        def datasets(self, *sizes, **options):
            drawn = super().datasets(*sizes, **options)
            return Datasets(1e3 * drawn.xs, 1e-4 * drawn.ys, 1e-4 * drawn.truth)

    for name, _, function in references(1):
        if name in ("ols", "lasso", "knn", "newton", "gradient descent, safe steps"):

            def in_old_units(x, y, q, function=function):
                return 1e-4 * function(x / 1e3, y / 1e-4, q / 1e3)

            assert identify(in_old_units, Scaled(4, noise=0.5), **SIZE).algorithm == name


def test_nearly_a_constant_is_none_of_these_and_the_mean_of_its_answers_is_said_to_be_nearer():
    generator = torch.Generator().manual_seed(0)
    found = identify(lambda x, y, q: 5 + torch.randn(len(x), generator=generator) / 100, Linear(4), **SIZE)
    assert found.algorithm == "none of these" and "the mean of its answers is nearer than all" in str(found)
    assert "mean of its answers" not in str(identify(disturbed(0.5), Linear(4, noise=0.5), **SIZE))
    assert identify(lambda x, y, q: 0 * q[:, 0], Linear(4), **SIZE).algorithm == "zero"


@pytest.mark.filterwarnings("ignore:lbfgs failed")  # where n = d it stops early, which is the point
def test_one_ill_conditioned_dataset_does_not_put_a_far_worse_reference_first():
    """A robust regression stops before the weights grow: least squares is far off where n = d, and nowhere else."""
    robust = HuberRegressor(fit_intercept=False)
    found = identify(robust, Linear(4, noise=0.3), datasets=32, points=12)
    nearest = min(match.unexplained.value for match in found.ranking)
    assert found["ols"].unexplained.value > 5 * nearest
    assert all(found[name].unexplained.value <= 2 * nearest for name in (found.nearest.name, *found.ties))


def test_every_dataset_has_the_same_say_in_the_ranking():
    few = [REFERENCES[name] for name in ("ols", "zero", "mean target")]
    errors = torch.full((40, 3), 0.1) + 0.01 * torch.arange(40)[:, None]
    errors[:, 0] /= 2
    errors[7, 0] += 8.0  # the mean of the first is now the largest, though not far from the others
    means = errors.mean(dim=0)
    assert means[1] < means[0] < 2 * means[1]
    assert rank(errors, few) == ([0, 1, 2], [])
    errors[7, 0] += 100.0
    assert rank(errors, few) == ([1, 2, 0], [2])


@pytest.mark.parametrize(
    ("predictor", "options", "said"),
    [
        (LeastSquares(), {"datasets": 2}, "at least 4 datasets"),
        (LeastSquares(), {"points": 10, "counts": [10]}, "counts must lie"),
        (lambda x, y, q: q[:, 0] / (x.shape[1] != 3), SIZE, "NaN or infinity after 3 examples"),
    ],
)
def test_bad_questions_are_refused(predictor, options, said):
    with pytest.raises(EmulonError, match=said):
        identify(predictor, Linear(4), **options)
