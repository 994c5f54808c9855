"""Every method as a prompt: what it says is the method, it reads back, and what it cannot hold is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from float_reading import gate, iterates
from sklearn.linear_model import Lasso as TheirLasso
from sklearn.linear_model import Ridge as TheirRidge

from emulon.algorithms import GradientDescent, Lasso, Nesterov, PoissonRegression, RidgeRegression, squared
from emulon.core.errors import BadExpression, BadPrompt, BadShape, EmulonError, OutOfDomain
from emulon.expressions.expression import parse
from emulon.language.methods import Method, as_method, known_methods, method_named
from emulon.language.prompt import gate_of, prompt, read, text_of

DRAW = np.random.default_rng(5)
X = DRAW.normal(size=(20, 4)).clip(-3, 3).round(3)
Y = (X @ [1.0, 0.5, -0.2, -0.5] + 0.3 * DRAW.normal(size=20)).round(3)


def targets_of(method):
    return np.sign(Y) if as_method(method).descent.loss.link.name == "margin" else Y


@pytest.mark.parametrize("name", sorted(known_methods()))
def test_a_prompt_says_the_method_and_reads_back(name):
    method = known_methods()[name](steps=12)
    found = prompt(method, X, targets_of(method))
    text = text_of(found)
    assert read(text) == found == read(" ".join(text.split()))
    descent, proximal = as_method(method).descent, as_method(method).proximal
    if proximal is None:  # the library's own float64 iterates know nothing of pieces
        known = replace(descent, step_size=found.rate / 1e8)
        exact = known.iterates(torch.tensor(X), torch.tensor(targets_of(method)))[1:].numpy()
        # Thresholds and penalties are rounded to 1e-8, and some losses jump beside where they should.
        assert np.abs(iterates(text, 12) - exact).max() < 1e-6
    else:
        function = parse(proximal.format(rate=found.rate / 1e8, threshold=found.rate / 1e8 * descent.l1))
        t = torch.linspace(-4, 4, 1001, dtype=torch.float64) + 1e-4
        pieces = [(found.prox.sharpness, *(part / 1e8 for part in piece)) for piece in found.prox.pieces]
        assert np.abs(gate(pieces, t.numpy()) - function(t).numpy()).max() < 5e-8


def test_prompts_converge_to_the_solutions_of_scikit_learn():
    ridge = text_of(prompt(method_named("ridge")(penalty=0.3, steps=200), X, Y))
    theirs = TheirRidge(alpha=20 * 0.3, fit_intercept=False).fit(X, Y).coef_
    assert np.abs(iterates(ridge, 200)[-1] - theirs).max() < 1e-7
    positive = text_of(prompt(method_named("nonnegative_lasso")(penalty=0.05, steps=200), X, Y))
    theirs = TheirLasso(alpha=0.05, fit_intercept=False, positive=True, tol=1e-10).fit(X, Y).coef_
    assert np.abs(iterates(positive, 200)[-1] - theirs).max() < 1e-7 and (theirs == 0).any()


@pytest.mark.parametrize(
    "expression",
    [
        "1.5*t - 2.25*Max(t + 7.5, 0) + 3*Max(t - 0.31, 0)",
        "Piecewise((-1, t < -2), (t/4, t < 3.5), (2 - t/8, True))",
        "sign(t)*Max(0, Min(Abs(t), 1, (4 - Abs(t))/2))",
    ],
)
def test_piecewise_affine_functions_become_pieces(expression):
    gated = gate_of(expression)
    t = torch.linspace(-15, 15, 600, dtype=torch.float64)
    pieces = [(gated.sharpness, *(part / 1e8 for part in piece)) for piece in gated.pieces]
    assert np.abs(gate(pieces, t.numpy()) - parse(expression)(t).numpy()).max() < 2e-7


@pytest.mark.parametrize(
    "expression",
    ["exp(t)", "t**2", "sin(t)", "Max(t, 0)**2", "tanh(t) + Max(t, 0)", "25*t", "Max(t - 21.5, 0)*30", "tanh(30*t)"],
)
def test_what_has_no_pieces_is_refused(expression):
    with pytest.raises(BadExpression) as refused:
        gate_of(expression)
    assert "\n" not in str(refused.value)


def test_the_perceptron_learns_from_zero_weights():
    text = text_of(prompt(method_named("perceptron")(steps=1), X, np.sign(Y)))
    assert np.abs(iterates(text, 1)[0]).max() > 0.05


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (dict(x=X * 30), OutOfDomain, "of row 1 is .*standardise"),
        (dict(x=np.full((20, 4), np.nan)), OutOfDomain, "x contains NaN"),
        (dict(y=Y * 1e6), OutOfDomain, "target of row 1"),
        (dict(x=np.tile(X, (4, 1)), y=np.tile(Y, 4)), OutOfDomain, "80 rows; the small model holds 60"),
        (dict(x=np.tile(X, 3)), OutOfDomain, "12 features; the small model holds 8"),
        (dict(method=Lasso(steps=500)), OutOfDomain, "500 steps; the small model holds 200"),
        (dict(method=Lasso(1e9, step_size=0.1)), OutOfDomain, "cannot be written"),
        (dict(method=GradientDescent(squared(), l2=30.0)), OutOfDomain, "the ridge penalty is 30"),
        (dict(method=GradientDescent(squared(), step_size=25.0)), OutOfDomain, "the step size is 25"),
        (dict(method=Nesterov()), EmulonError, "acceleration"),
        (dict(method=PoissonRegression(), y=abs(Y)), EmulonError, "rate"),
        (dict(method=RidgeRegression(0.1)), EmulonError, "not gradient descent"),
        (dict(method=Method(GradientDescent(squared()), "exp(t)")), BadExpression, "pieces"),
        (dict(start=[1.0]), BadShape, "start has shape"),
        (dict(x=X[None]), BadShape, "one table"),
    ],
)
def test_what_a_prompt_cannot_hold_is_refused_in_one_line(change, error, says):
    given = {"method": Lasso(steps=5), "x": X, "y": Y, "start": None} | change
    with pytest.raises(error, match=says) as refused:
        prompt(given["method"], given["x"], given["y"], start=given["start"])
    assert "\n" not in str(refused.value)


TEXT = text_of(prompt(Lasso(steps=5), X[:3, :2], Y[:3]))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("until:5", "until:x", "word 1 is 'until:x'; wanted until:"),
        ("until:5", "until:201", "201 steps"),
        ("until:5", "until:0", ""),
        ("rate", "rat", "word 2 is 'rat'; wanted rate"),
        ("momentum", "ridge", "wanted momentum"),
        ("prox^24", "prox^23", "one sharpness"),
        ("loss^0", "loss^1", "a single piece has 0"),
        ("loss^0", "loss^25", "sharpness"),
        ("#2", "#3", "wanted #2"),
        ("x2", "x3", "wanted"),
        ("step:0", "step:1", "wanted step:0"),
        ("w2", "w1", "wanted"),
        ("times +1.00", "times 1.00", "part of a number"),
        ("times +1.00", "times +20.00", "part of a number"),
    ],
)
def test_a_text_that_is_no_prompt_is_refused_with_its_place(old, new, says):
    assert old in TEXT
    if not says:
        assert read(TEXT.replace(old, new, 1)).until == 0
        return
    with pytest.raises((BadPrompt, OutOfDomain), match=says.replace("^", r"\^")) as refused:
        read(TEXT.replace(old, new, 1))
    assert "\n" not in str(refused.value)


def test_a_text_that_ends_early_or_late_is_refused():
    words = TEXT.split()
    for end in range(len(words)):
        with pytest.raises(BadPrompt):
            read(" ".join(words[:end]))
    with pytest.raises(BadPrompt, match="wanted the end"):
        read(TEXT + " w3")
