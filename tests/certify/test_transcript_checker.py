"""Transcripts: bounds hold of the true deviation, alterations are refused or raise them, and the file stands alone."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.algorithms import HuberRegression, Lasso, LogisticRegression, Perceptron, Ridge
from emulon.certify import transcript_checker as checker
from emulon.expressions.evaluation import ball_arithmetic
from emulon.language.methods import known_methods
from emulon.language.prompt import prompt, text_of
from emulon.language.vocabulary import SMALL, Vocabulary

sys.path.insert(0, str(Path(__file__).parents[1] / "language"))
from float_reading import iterates, statements, written

DRAW = np.random.default_rng(2)
X = DRAW.normal(size=(6, 2)).round(2)
Y = (X @ [1.0, -0.5] + 0.2 * DRAW.normal(size=6)).round(2)
WORDS = [token.text for token in Vocabulary(SMALL).tokens]
METHODS = [Ridge(0.3, 4), Lasso(0.1, 4), LogisticRegression(0.1, 4), HuberRegression(0.3, 4), Perceptron(4)]
TEXTS = [written(text_of(prompt(m, X, np.sign(Y) if i in (2, 4) else Y)), seed=i) for i, m in enumerate(METHODS)]


def audited(text):
    with ball_arithmetic(checker.PRECISION):
        return checker.audit(checker.read(text))


def deviation(text):
    """The largest distance of a written weight from the float64 iterate of what the text says."""
    blocks = statements(text)[4]
    steps = sorted(blocks)[2:]
    return np.abs(np.array([blocks[step] for step in steps]) - iterates(text, len(steps))).max()


def test_it_imports_flint_and_the_standard_library_alone():
    tree = ast.parse(Path(checker.__file__).read_text())
    found = {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    found |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert found - set(sys.stdlib_module_names) == {"flint"}


@pytest.mark.parametrize("name", sorted(known_methods()))
def test_the_bound_is_the_true_deviation(name):
    method = known_methods()[name](steps=15)
    margin = name in ("hinge", "perceptron", "squared_hinge") or "logistic" in name
    text = written(text_of(prompt(method, X, np.sign(Y) if margin else Y)))
    found, true = audited(text), deviation(text)
    assert true - 1e-13 <= found.bound <= 1.001 * true + 1e-13
    assert len(found.bounds) == 15 and (found.near_jumps or all(defect < 1e-6 for defect in found.defects))


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(TEXTS), st.floats(0, 1, exclude_max=True), st.sampled_from(WORDS))
def test_an_altered_word_is_refused_or_raises_the_bound_above_the_true_deviation(text, place, word):
    words = text.split()
    at = int(place * len(words))
    before, words[at] = words[at], word
    if before == word:
        return
    try:
        found = audited(" ".join(words))
    except checker.Refused as refused:
        assert "\n" not in str(refused)
        return
    assert before[0] in "+-" and word[0] in "+-", "a word of the structure was altered unnoticed"
    assert found.bound >= deviation(" ".join(words)) - 1e-13


@pytest.mark.parametrize("text", TEXTS)
def test_an_altered_digit_of_the_weights_raises_the_bound_of_its_step(text):
    words, clean = text.split(), audited(text)
    first, steps = words.index("step:1"), 0
    for at in range(first, len(words)):
        steps += words[at].startswith("step:")
        if words[at][0] not in "+-":
            continue
        digit = 1 + at % (len(words[at]) - 1)
        if words[at][digit] == ".":
            continue
        changed = words[at][:digit] + str((int(words[at][digit]) + 1) % 10) + words[at][digit + 1 :]
        unit = 1.0 if "." in changed else 1e-5 if words[at - 1][2:3] == "." or words[at - 1][3:4] == "." else 1e-8
        try:
            found = audited(" ".join([*words[:at], changed, *words[at + 1 :]]))
        except checker.Refused:  # no word of the language, as -000
            continue
        moved = abs(float(changed) - float(words[at])) * unit
        assert found.bounds[steps - 1] >= moved - clean.bounds[steps - 1] - 1e-15 and moved > 0


@pytest.mark.parametrize("change", ["insert", "delete", "swap"])
def test_a_word_more_or_less_is_refused(change):
    words = TEXTS[1].split()
    for at in range(0, len(words) - 1, 7):
        new = [*words]
        if change == "insert":
            new.insert(at, words[at - 3])
        elif change == "delete":
            del new[at]
        elif words[at] == words[at + 1] or {words[at][0], words[at + 1][0]} <= {"+", "-"}:
            continue
        else:
            new[at], new[at + 1] = new[at + 1], new[at]
        with pytest.raises(checker.Refused):
            audited(" ".join(new))


def test_a_path_that_takes_the_other_side_of_a_jump_is_not_covered_up():
    # r is exactly at the jump of sign(r) for w = 0; the writer takes +1 where the exact value is the mean, 0.
    start = "until:1 rate +1.00 +000 +000 ridge +0.00 +000 +000 momentum +0.00 +000 +000 "
    one, none = "+1.00 +000 +000", "+0.00 +000 +000"
    for slope, plus in ((one, one), ("-1.00 +000 +000", "-1.00 +000 +000")):
        start += f"slope {slope} bias {none} times {none} plus {plus} loss^24 "
    start += f"slope {none} bias {none} times {one} plus {none} prox^0 #1 y {none} x1 {one} "
    start += f"step:-1 w1 {none} step:0 w1 {none} "
    right, wrong = audited(f"{start} step:1 @1 w1 {none}"), audited(f"{start} step:1 @1 w1 -1.00 +000 +000")
    assert right.bound == 0 and right.near_jumps == 1
    assert 1 <= wrong.bound < 1 + 1e-12 and wrong.near_jumps == 1


def test_a_run_that_diverges_is_still_bounded_exactly():
    text = text_of(prompt(Ridge(0.3, 6, step_size=1.9), X, Y))
    assert audited(written(text)).bound == pytest.approx(deviation(written(text)), abs=1e-11)


def test_overflow_ends_a_transcript_and_is_no_success():
    words = TEXTS[0].split()
    at = words.index("step:3")
    stopped = " ".join([*words[: at + 7], "w1", "overflow"])
    transcript = checker.read(stopped)
    assert transcript.overflow and len(transcript.written) == 2
    with ball_arithmetic(checker.PRECISION), pytest.raises(checker.Refused, match="overflow at step 3 of 4"):
        checker.check(stopped)


def test_the_file_checks_transcripts_without_emulon(tmp_path):
    good, bad, short = (tmp_path / name for name in ("good.txt", "bad.txt", "short.txt"))
    words = TEXTS[0].split()
    good.write_text(TEXTS[0])
    bad.write_text(" ".join([*words[:-2], "+499" if words[-2] != "+499" else "+400", words[-1]]))
    short.write_text(" ".join(words[:-1]))

    def run(*files):
        command = [sys.executable, "-I", checker.__file__, *map(str, files)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run(good)
    assert done.returncode == 0 and "every weight of 4 steps is within" in done.stdout
    assert run(bad).returncode == 1 and "step 4 is up to" in run(bad).stderr
    assert run(bad, "--within", "1").returncode == 0
    assert run(short).returncode == 1 and "the text ends" in run(short).stderr
    assert run(tmp_path / "none.txt").returncode == 2 and run().returncode == 2


def test_the_command_checks_transcripts(tmp_path, capsys):
    from emulon.cli import main

    good = tmp_path / "good.txt"
    good.write_text(TEXTS[1])
    assert main(["check", str(good)]) == 0 and "holds: every weight" in capsys.readouterr().out
    assert main(["check", str(good), "--within", "1e-9"]) == 1 and "step 1 is up to" in capsys.readouterr().err
    assert main(["check", "certificate.json", "--within", "1"]) == 2
