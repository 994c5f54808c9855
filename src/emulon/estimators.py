"""scikit-learn estimators that fit by compiling an algorithm for the data and running it on a frozen interpreter.

Constructors take anything and check nothing, as scikit-learn asks: parameters are checked by `fit`.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from emulon.algorithms import ALGORITHMS, Algorithm, GradientDescent
from emulon.algorithms.losses import Kind
from emulon.certify.certificate import Bounds
from emulon.core.errors import EmulonError
from emulon.interpreter import Interpreter, Run, compile
from emulon.interpreter.plan import descent_of, domain_from_data

# Steps of an algorithm that is given by its name alone.
STEPS = 200


class _Emulated(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both estimators share: from parameters to an algorithm, and from data to a run."""

    default_algorithm: ClassVar[str]
    coef_: np.ndarray
    intercept_: Any

    def __init__(
        self,
        algorithm: Any = None,
        *,
        steps: Any = None,
        penalty: Any = None,
        tolerance: Any = None,
        fit_intercept: Any = True,
        scale: Any = True,
        interpreter: Any = None,
    ) -> None:
        self.algorithm, self.steps, self.penalty, self.tolerance = algorithm, steps, penalty, tolerance
        self.fit_intercept, self.scale, self.interpreter = fit_intercept, scale, interpreter

    def _scaler(self, columns: np.ndarray, weight: np.ndarray | None = None, free: bool = True) -> StandardScaler:
        scaler = StandardScaler(with_mean=self.fit_intercept and free, with_std=self.scale and free)
        return scaler.fit(columns, sample_weight=weight)

    def _fit(self, algorithm: Algorithm, x: np.ndarray, targets: np.ndarray) -> None:
        """Every row of `targets` is one element of the batch: one program runs them all."""
        batch = torch.tensor(x, device="cpu").expand(len(targets), *x.shape)
        data = (batch, torch.tensor(targets, device="cpu"))
        sizes = descent_of(algorithm).resolved_step_size(*data)
        if sizes.min() < sizes.max() and is_dataclass(algorithm):  # one program runs all targets, with one step size
            algorithm = replace(algorithm, step_size=sizes.min().item())
        # With the domain of the data: whether an intercept is fitted is this estimator's own parameter.
        program = compile(algorithm, domain_from_data(descent_of(algorithm), *data), self.tolerance, data=data)
        interpreter = Interpreter.fitting(program) if self.interpreter is None else self.interpreter
        self.run_: Run = interpreter.run(program, *data)
        self.n_iter_ = program.steps

    @property
    def certificate_(self) -> Bounds:
        """The audit and the certificate of `run_.weights`, which are weights for the data as they were scaled."""
        check_is_fitted(self, "run_")
        return self.run_.bounds

    def _scores(self, x: Any) -> np.ndarray:
        check_is_fitted(self, "run_")
        x = validate_data(self, x, reset=False, dtype=np.float64)
        scores: np.ndarray = x @ np.transpose(self.coef_) + self.intercept_
        return scores


class EmulatedRegressor(MultiOutputMixin, RegressorMixin, _Emulated):  # type: ignore[misc]  # as above
    """A regression algorithm of the library, run by a frozen transformer.

    `algorithm` is a name in `emulon.algorithms.ALGORITHMS` or an `Algorithm`, by default ridge; `steps` and `penalty`,
    where given, replace its own. `interpreter` is the one to run on, by default the smallest that fits.

    The algorithm sees x and y centred (unless `fit_intercept=False`) and divided by their standard deviations (unless
    `scale=False`): its penalty and other parameters are in those units. `coef_` and `intercept_` are scaled back. For
    the squared loss centring is all an intercept needs; other losses get a column of ones as well. Poisson's counts
    are left as they are, and its penalty covers the intercept. Several targets are one batch, run by one program; where
    they would choose different step sizes, all take the smallest. `n_iter_` is the number of steps.

    `sample_weight` weighs the squared losses in their mean, as a row times √weight is a row of that weight; other
    losses take none.
    """

    default_algorithm = "ridge"

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> EmulatedRegressor:
        checks: dict[str, Any] = {"dtype": np.float64, "order": "C", "ensure_min_samples": 2}
        x, y = validate_data(self, x, y, multi_output=True, y_numeric=True, **checks)
        algorithm, descent = _algorithm_and_descent(self, "regression")
        several, y = np.ndim(y) == 2, np.asarray(y, dtype=np.float64).reshape(len(x), -1)
        if sample_weight is not None and descent.loss.derivative != "t":
            raise EmulonError(f"sample_weight is for the squared loss, and not for {descent.loss.name}; repeat rows")
        weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        x, y, weight = x[weight > 0], y[weight > 0], weight[weight > 0]
        inputs = self._scaler(x, weight)
        outputs = self._scaler(y, weight, descent.loss.link.any_units)
        ones = self.fit_intercept and descent.loss.derivative != "t"
        # A row's part in the mean of squares, over the part that all rows would have.
        part = np.sqrt(weight / weight.mean())[:, None]
        self._fit(algorithm, part * _with_ones(inputs.transform(x), ones), (part * outputs.transform(y)).T)
        coef, intercept = _unscaled(self.run_.weights.numpy(), inputs, ones)
        center, size = _units(outputs)
        coef, intercept = coef * size[:, None], intercept * size + center
        self.coef_ = coef if several else coef[0]
        self.intercept_ = intercept if several else float(intercept[0])
        return self

    def predict(self, x: Any) -> np.ndarray:
        """The response to w·x + intercept: itself, or for Poisson its exponential."""
        scores = torch.tensor(self._scores(x), device="cpu")
        return self.run_.program.loss.mean_response(scores).numpy()


def _has_probabilities(self: EmulatedClassifier) -> bool:
    return _algorithm_and_descent(self, "classification")[1].loss.name == "logistic"


class EmulatedClassifier(ClassifierMixin, _Emulated):  # type: ignore[misc]  # as above
    """A classification algorithm of the library, run by a frozen transformer.

    Parameters as for `EmulatedRegressor`; the default is logistic regression. The algorithm sees x centred and divided
    by its standard deviations, and a column of ones for the intercept, which its penalty covers. More than two classes
    are one-vs-rest: one batch, run by one program.
    """

    default_algorithm = "logistic_regression"

    def fit(self, x: Any, y: Any) -> EmulatedClassifier:
        x, y = validate_data(self, x, y, dtype=np.float64, order="C", ensure_min_samples=2)
        check_classification_targets(y)
        algorithm, _ = _algorithm_and_descent(self, "classification")
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise EmulonError(f"y has one class, {self.classes_[0]!r}; a classifier needs at least two")
        ours = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        scaler = self._scaler(x)
        targets = np.array([np.where(index == k, 1.0, -1.0) for k in ours])
        self._fit(algorithm, _with_ones(scaler.transform(x), self.fit_intercept), targets)
        self.coef_, self.intercept_ = _unscaled(self.run_.weights.numpy(), scaler, self.fit_intercept)
        return self

    def decision_function(self, x: Any) -> np.ndarray:
        """w·x + intercept: (n,) for two classes, where above zero is the second; (n, classes) for more."""
        scores = self._scores(x)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, x: Any) -> np.ndarray:
        scores = self.decision_function(x)
        classes: np.ndarray = self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]
        return classes

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]  # as above
    def predict_proba(self, x: Any) -> np.ndarray:
        """Of each class, for logistic regression; one-vs-rest probabilities are scaled to sum to one."""
        scores = torch.tensor(self.decision_function(x), device="cpu")
        if scores.ndim == 1:
            scores = torch.stack([-scores, scores], dim=1)
        return torch.softmax(torch.nn.functional.logsigmoid(scores), dim=1).numpy()


def _algorithm_and_descent(estimator: _Emulated, kind: Kind) -> tuple[Algorithm, GradientDescent]:
    """The algorithm asked for, with the estimator's parameters, and its descent."""
    algorithm = estimator.default_algorithm if estimator.algorithm is None else estimator.algorithm
    if isinstance(algorithm, str):
        algorithm = ALGORITHMS.named(algorithm)(steps=STEPS)  # type: ignore[call-arg]  # all are dataclasses with steps
    if not isinstance(algorithm, Algorithm):
        raise EmulonError(f"algorithm is a name or an Algorithm, not {type(algorithm).__name__}")
    given = {name: getattr(estimator, name) for name in ("steps", "penalty") if getattr(estimator, name) is not None}
    for name in given:
        if not is_dataclass(algorithm) or not hasattr(algorithm, name):
            raise EmulonError(f"{type(algorithm).__name__} has no {name}; leave it out")
    algorithm = replace(algorithm, **given) if given else algorithm  # type: ignore[type-var]  # it is a dataclass
    descent = descent_of(algorithm)
    if descent.loss.link.kind != kind:
        other = "EmulatedClassifier" if kind == "regression" else "EmulatedRegressor"
        raise EmulonError(f"{type(algorithm).__name__} is not for {type(estimator).__name__}; use {other}")
    return algorithm, descent


def _units(scaler: StandardScaler) -> tuple[np.ndarray, np.ndarray]:
    """What a scaler takes off each column, and what it divides it by."""
    zeros = np.zeros(scaler.n_features_in_)
    return scaler.mean_ if scaler.with_mean else zeros, scaler.scale_ if scaler.with_std else zeros + 1


def _unscaled(weights: np.ndarray, scaler: StandardScaler, ones: bool) -> tuple[np.ndarray, np.ndarray]:
    """(coef, intercept) for the columns as they were, from weights (batch, features) of the scaled ones."""
    center, size = _units(scaler)
    coef = (weights[:, :-1] if ones else weights) / size
    return coef, (weights[:, -1] if ones else 0.0) - coef @ center


def _with_ones(x: np.ndarray, wanted: bool) -> np.ndarray:
    return np.column_stack([x, np.ones(len(x))]) if wanted else x
