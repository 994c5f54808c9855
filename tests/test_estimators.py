"""The estimators keep scikit-learn's contract, and fit what their algorithm fits."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from emulon.algorithms import FACES, GradientDescent, HuberRegression, LogisticRegression, Loss, Ridge
from emulon.errors import EmulonError
from emulon.estimators import EmulatedClassifier, EmulatedRegressor
from emulon.interpreter import Interpreter, compile


# Few steps: the checks ask about conduct, and a fit is a whole compilation.
@parametrize_with_checks([EmulatedRegressor(steps=50), EmulatedClassifier(steps=50)])
def test_keeps_scikit_learns_contract(estimator: Any, check: Any):
    check(estimator)
