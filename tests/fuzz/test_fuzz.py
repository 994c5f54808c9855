"""The fuzzer finds what is planted, makes it small, writes it down as a test; and what is right it leaves alone."""

import runpy
from random import Random

import pytest
import torch
from flint import arb

from emulon import cli
from emulon.certify import Band
from emulon.core.errors import OutOfDomain
from emulon.fuzz import (
    Campaign,
    Counts,
    Kind,
    Undecided,
    Violation,
    audits,
    check,
    functions,
    grammar,
    judge,
    kind_named,
    learning,
    tried,
)
from emulon.fuzz.shrink import shrunk, simpler_trees
from emulon.looped import LoopedRun


def passes(file):
    """Whether the one test of a file passes."""
    tests = [one for name, one in runpy.run_path(str(file)).items() if name.startswith("test_")]
    assert len(tests) == 1
    try:
        tests[0]()
    except AssertionError:
        return False
    return True


def test_a_planted_violation_is_found_made_small_and_written(tmp_path, monkeypatch):
    exact = LoopedRun._answers
    wrong = lambda self, state: exact(self, state) + (1e-3 if self.loops >= 2 else 0.0)  # noqa: E731 (the plant)
    monkeypatch.setattr(LoopedRun, "_answers", wrong)
    campaign, counts = Campaign(3, ("looped",), tmp_path), Counts()
    campaign.run(lambda number: 1.0 if counts.failed or number > 30 else 0.0, counts)
    [failure] = counts.failures
    assert failure.outcome.verdict == "violation" and "e-03 off" in failure.outcome.said
    assert failure.values["loops"] == 2 and len(failure.values["x"]) == 1 and len(failure.values["x"][0]) == 1
    assert failure.file.parent == tmp_path and not passes(failure.file)
    monkeypatch.undo()
    assert passes(failure.file)


def planted(error):
    def parse(text):
        raise error

    return parse


def test_the_command_counts_writes_and_tells_by_its_exit_code(tmp_path, monkeypatch, capsys):
    out = tmp_path / "failures"
    words = ["fuzz", "--only", "text", "--cases", "5", "--out", str(out)]
    assert cli.main(words) == 0 and not out.exists()
    said = capsys.readouterr().out
    assert "5 cases: 0 violations, 0 tracebacks" in said
    monkeypatch.setattr(functions, "parse", planted(ZeroDivisionError("planted")))
    assert cli.main(words) == 1
    assert "traceback: ZeroDivisionError: planted" in capsys.readouterr().out
    [file] = out.iterdir()
    assert not passes(file)
    monkeypatch.setattr(functions, "parse", planted(KeyboardInterrupt()))
    assert cli.main(words) == 130 and "0 cases: 0 violations, 0 tracebacks" in capsys.readouterr().out
    assert cli.main(["fuzz", "--only", "tetx"]) == 2 and "did you mean text?" in capsys.readouterr().err


def test_a_seed_decides_every_case():
    one, same, other = Campaign(5), Campaign(5), Campaign(6)
    cases = [[(kind.name, values) for kind, values in map(each.case, range(40))] for each in (one, same, other)]
    assert repr(cases[0]) == repr(cases[1]) != repr(cases[2])
    assert {name for name, _ in cases[0]} > {"audit", "interpreter", "approximation"}


def test_what_comes_of_a_case_is_told_apart(monkeypatch):
    kind = Kind.registry["text"]
    verdicts = {}
    for error in (OutOfDomain("one line"), OutOfDomain("two\nlines"), KeyError("k"), Violation("v"), Undecided("?")):
        monkeypatch.setattr(functions, "parse", planted(error))
        verdicts[str(error)] = tried(kind, {"text": "t"}).verdict
    assert list(verdicts.values()) == ["refused", "violation", "traceback", "violation", "open"]
    monkeypatch.undo()
    assert tried(kind, {"text": "t"}).verdict == "kept"
    check("text", {"text": "t"})


def test_cases_shrink_to_what_still_fails():
    case = {"x": [[3.14159, 20.5], [1.0, 2.0], [0.1, 0.2]], "y": [1.0, 2.0, 3.0], "steps": 12, "tolerance": 1.2345e-7}

    def fails(values):
        return len(values["y"]) == len(values["x"]) and values["steps"] >= 3 and max(map(max, values["x"])) > 10

    assert shrunk(case, fails) == {"x": [[20.0]], "y": [1.0], "steps": 3, "tolerance": 0.0}
    tree = ["+", ["sin", ["t"]], ["number", "3.25"]]
    assert ["sin", ["t"]] in simpler_trees(tree) and ["+", ["t"], ["number", "3.25"]] in simpler_trees(tree)


def test_the_judge_knows_right_from_wrong_and_what_it_does_not_know():
    third = torch.tensor([1 / 3])
    judge.judged("third", third.double(), 1e-7, lambda: [arb(1) / 3])
    with pytest.raises(Violation, match="off, promised"):
        judge.judged("third", third.double(), 1e-9, lambda: [arb(1) / 3])
    with pytest.raises(Violation):
        judge.judged("nothing", torch.tensor([torch.nan]), 1.0, lambda: [arb(1)])
    with pytest.raises(Undecided):
        judge.judged("jump", third, 1.0, lambda: [grammar.exact(["sign", ["t"]], (arb(2).sqrt() ** 2 - 2))])
    assert float(grammar.exact(["Heaviside", ["t"]], arb(0))) == 0.5


@pytest.mark.parametrize("name", learning.LOSSES)
def test_the_judges_losses_are_the_librarys(name):
    """Two hands wrote them; that they agree away from jumps is no proof of either, but a slip would show."""
    loss, slope = learning.exact_loss({"algorithm": name, "delta": 1.35, "tau": 0.25, "c": 4.685})
    theirs = learning.as_loss(learning.written({"algorithm": name, "delta": 1.35, "tau": 0.25, "c": 4.685}))
    for t in (-5.0, -0.7, 0.3, 2.0):
        assert float(slope(arb(t))) == pytest.approx(
            theirs.slope(torch.tensor(t, dtype=torch.float64)).item(), abs=1e-12
        )
    assert loss.link == theirs.link.name


def test_trees_mean_to_the_judge_what_their_text_means_to_emulon():
    random, seen = Random(0), 0
    for _ in range(60):
        tree = grammar.drawn(random, 2)
        value = grammar.exact(tree, arb(0.7))
        if not value.is_finite() or abs(value) > 1e6:
            continue
        seen += 1
        ours = functions.parse(grammar.text(tree))(torch.tensor([0.7], dtype=torch.float64)).item()
        assert ours == pytest.approx(float(value), rel=1e-9, abs=1e-9), grammar.text(tree)
    assert seen > 40


def test_audits_hold_where_numbers_underflow():
    """Found by random cases: bounds of rounding are relative, and subnormal numbers are not."""
    case = {"which": "looped causal newton", "x": [[0.0, 1.0], [0.0, 0.4], [0.0, 0.0], [0.0, 0.0]]}
    case |= {"y": [1e-310, 0.0, 0.5, 0.0], "query": [0.0, 1.0], "loops": 1, "dtype": "float64"}
    assert tried(Kind.registry["audit"], case).verdict == "kept"


def test_points_are_compared_with_bands_as_the_numbers_they_are():
    """Found by random cases: float32 rounds the end of a band onto a point that is inside it."""
    end = -0.5689999999999993
    inside, outside = torch.tensor([-0.569]), torch.tensor([-0.56899995])
    assert inside.item() < end < outside.item()
    kept = functions.outside(torch.cat([inside, outside]), (Band(-0.6, end),))
    assert kept.tolist() == outside.tolist()


def test_a_tolerance_that_a_program_says_it_misses_is_no_failure():
    case = {"which": "interpreter lasso", "x": [[0.4, 0.0]] * 4, "y": [1.0] * 4, "query": [0.0, 0.0], "loops": 0}
    with pytest.warns(UserWarning, match="can promise"):
        kind_named("audit").check({**case, "dtype": "float32"})
    audits._interpreted.cache_clear()
    assert tried(kind_named("audit"), {**case, "dtype": "float32"}).verdict == "kept"
