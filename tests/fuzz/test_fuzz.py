"""Random cases find a planted fault and make it small, and the oracle is right where it decides."""

import pytest
import torch
from flint import arb
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.certify import Domain
from emulon.core.errors import OutOfDomain
from emulon.expressions import parse
from emulon.looped import LoopedRun
from fuzz import functions, learning, oracle, solvers
from fuzz.__main__ import KINDS, main, try_cases
from fuzz.data import tensors, trees

LOOPED = {"which": "gradient descent", "x": [[0.0]], "y": [1.0], "query": [1.0], "loops": 2, "horizon": 2}
LOOPED |= {"tolerance": None, "slack": 1.0, "dtype": "float64"}


def test_a_planted_fault_is_a_violation(monkeypatch):
    exact = LoopedRun._answers
    monkeypatch.setattr(LoopedRun, "_answers", lambda self, state: exact(self, state) + 1e-3 * (self.loops >= 2))
    assert oracle.verdict(solvers.check_loop, LOOPED | {"loops": 1}) == "held"
    with pytest.raises(oracle.Violation, match="e-03 off"):
        oracle.verdict(solvers.check_loop, LOOPED)


def test_a_violation_is_found_and_made_small(monkeypatch):
    def check(case):
        if case["loops"] >= 2:
            raise oracle.Violation("planted")

    cases = st.fixed_dictionaries({"loops": st.integers(0, 6), "x": st.floats(-3, 3)})
    monkeypatch.setitem(KINDS, "planted", (cases, check, 100))
    _, error = try_cases("planted", seed=3)
    assert isinstance(error, oracle.Violation)
    [note] = [note for note in error.__notes__ if "'loops': 2" in note]
    assert "'x': 0.0" in note


def raising(error):
    def parse(text):
        raise error

    return parse


def test_the_command_counts_cases_and_fails_where_one_does(monkeypatch, capsys):
    arguments = ["--only", "text", "--rounds", "1", "--minutes", "5"]
    assert main(arguments) == 0
    assert "0 violations, 0 tracebacks" in capsys.readouterr().out
    monkeypatch.setattr(functions, "parse", raising(ZeroDivisionError("planted")))
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert "text: ZeroDivisionError: planted" in printed and "0 violations, 1 tracebacks" in printed


@pytest.mark.parametrize("name", ["machine", "text"])
def test_random_cases_hold(name):
    counts, error = try_cases(name, seed=0)
    assert error is None and counts["held"] > 0


@pytest.mark.parametrize(
    ("error", "outcome"), [(OutOfDomain("one line"), "refused"), (oracle.Undecided("at a jump"), "undecided")]
)
def test_refusals_and_open_cases_are_no_failures(monkeypatch, error, outcome):
    monkeypatch.setattr(functions, "parse", raising(error))
    assert oracle.verdict(functions.check_text, {"text": "t"}) == outcome


def test_a_refusal_of_two_lines_is_a_violation(monkeypatch):
    monkeypatch.setattr(functions, "parse", raising(OutOfDomain("two\nlines")))
    with pytest.raises(oracle.Violation, match="not one line"):
        oracle.verdict(functions.check_text, {"text": "t"})


def test_the_oracle_decides_where_it_can():
    third = torch.tensor([1 / 3])
    oracle.require_within("third", third, 1e-7, lambda: [arb(1) / 3])
    with pytest.raises(oracle.Violation, match="off, bound"):
        oracle.require_within("third", third, 1e-9, lambda: [arb(1) / 3])
    with pytest.raises(oracle.Violation):
        oracle.require_within("nothing", torch.tensor([torch.nan]), 1.0, lambda: [arb(1)])
    with pytest.raises(oracle.Undecided):
        oracle.require_within("jump", third, 1.0, lambda: [oracle.value_of(["sign", ["t"]], arb(2).sqrt() ** 2 - 2)])


@pytest.mark.parametrize("name", learning.LOSSES)
def test_losses_of_the_oracle_are_the_librarys(name):
    """Written twice: a slip in either shows."""
    case = {"algorithm": name, "delta": 1.35, "tau": 0.25, "c": 4.685}
    theirs, slope = learning.as_loss(learning.written(case)), learning.slope_of(case)
    for t in (-5.0, -0.7, 0.3, 2.0):
        expected = theirs.slope(torch.tensor(t, dtype=torch.float64)).item()
        assert float(slope(arb(t))) == pytest.approx(expected, abs=1e-12)
    assert learning.loss_of(case).link == theirs.link.name


@given(trees())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_trees_mean_to_the_oracle_what_their_text_means_to_emulon(tree):
    value = oracle.value_of(tree, arb(0.7))
    if value.is_finite() and abs(value) < 1e6:
        ours = parse(oracle.text(tree))(torch.tensor([0.7], dtype=torch.float64)).item()
        assert ours == pytest.approx(float(value), rel=1e-9, abs=1e-9)


def test_audits_hold_where_numbers_underflow():
    """Found by random cases: bounds of rounding are relative, and subnormal numbers are not."""
    x = [[0.0, 1.0], [0.0, 0.4], [0.0, 0.0], [0.0, 0.0]]
    case = LOOPED | {"which": "causal gradient descent", "x": x, "y": [1e-310, 0.0, 0.5, 0.0], "query": [0.0, 1.0]}
    solver = solvers.solver_of(case | {"horizon": 6}, Domain(4, 2, x=1.0, y=1.0, w=0.0))
    solvers.check_solver(case | {"loops": 1}, solver, tensors(case, "x", "y", "query"))
