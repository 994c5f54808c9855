"""Transcripts: bounds hold of the true deviation, alterations are refused or raise them, and the file stands alone.

EMULON_ALTERATIONS=1000 python -m pytest tests/certify/test_transcript_checker.py -s   judges so many.
"""

import ast
import math
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from flint import arb
from transcript_judge import altered, deviation

from emulon import cli
from emulon.algorithms import HuberRegression, Lasso, LogisticRegression, Perceptron, Ridge
from emulon.certify import transcript_checker as checker
from emulon.expressions.evaluation import ball_arithmetic
from emulon.language.methods import known_methods
from emulon.language.prompt import prompt, text_of
from emulon.language.vocabulary import SMALL, Vocabulary

sys.path.insert(0, str(Path(__file__).parents[1] / "language"))
from float_reading import written

DRAW = np.random.default_rng(2)
X = DRAW.normal(size=(6, 2)).round(2)
Y = (X @ [1.0, -0.5] + 0.2 * DRAW.normal(size=6)).round(2)
WORDS = [token.text for token in Vocabulary(SMALL).tokens]
METHODS = [Ridge(0.3, 4), Lasso(0.1, 4), LogisticRegression(0.1, 4), HuberRegression(0.3, 4), Perceptron(4)]
ALTERATIONS = int(os.environ.get("EMULON_ALTERATIONS", "150"))
TEXTS = [written(text_of(prompt(m, X, np.sign(Y) if i in (2, 4) else Y)), seed=i) for i, m in enumerate(METHODS)]


def audited(text):
    with ball_arithmetic(checker.PRECISION):
        return checker.audit(checker.read(text))


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
    assert true <= Fraction(found.bound) and found.bound <= float(true) * (1 + 1e-9) + 1e-12
    assert len(found.bounds) == 15 and (found.near_jumps or all(defect < 1e-6 for defect in found.defects))


def test_an_altered_transcript_is_refused_or_its_bound_is_above_the_true_deviation(capsys):
    counts = Counter()
    for number in range(ALTERATIONS):
        draw = random.Random(number)
        text = draw.choice(TEXTS)
        kind, changed = altered(text, WORDS, draw)
        if changed.split() == text.split():
            counts[kind, "unchanged"] += 1
            continue
        try:
            found = audited(changed)
        except checker.Refused as refused:
            assert "\n" not in str(refused)
            counts[kind, "refused"] += 1
            continue
        assert kind not in ("insert", "delete"), f"alteration {number}: a word more or less was not noticed"
        true = deviation(changed)
        assert true <= Fraction(found.bound), f"alteration {number}, {kind}: {float(true)} off, bound {found.bound}"
        # Data and pieces are altered, too: the bound is then the distance from what the new prompt states.
        assert found.precision == checker.HIGHEST or found.bound <= float(true) * (1 + 1e-9) + 1e-12
        counts[kind, "bounded"] += 1
    with capsys.disabled():
        if ALTERATIONS >= 1000:
            print("\n" + "\n".join(f"{kind:16}{what:12}{count}" for (kind, what), count in sorted(counts.items())))
    assert len({kind for kind, _ in counts}) > 10 and {what for _, what in counts} >= {"refused", "bounded"}


ONE, NONE, UNIT = "+1.00 +000 +000", "+0.00 +000 +000", "+0.00 +000 +001"


def gate(name, sharpness, *pieces):
    parts = ("slope", "bias", "times", "plus")
    words = (" ".join(f"{part} {number}" for part, number in zip(parts, piece, strict=True)) for piece in pieces)
    return " ".join(f"{piece} {name}^{sharpness}" for piece in words)


def sign(name, bias=(NONE, NONE), sharpness=24):
    minus = "-1.00 +000 +000"
    return gate(name, sharpness, (ONE, bias[0], NONE, ONE), (minus, bias[1], NONE, minus))


def transcript(loss, prox, *, rate=ONE, ridge=NONE, momentum=NONE, before=NONE, start=NONE, rows=1, written=(NONE,)):
    """One feature that is 1, targets that are 0."""
    words = [f"until:{len(written)} rate {rate} ridge {ridge} momentum {momentum}", loss, prox]
    words += [f"#{i + 1} y {NONE} x1 {ONE}" for i in range(rows)] + [f"step:-1 w1 {before} step:0 w1 {start}"]
    marks = " ".join(f"@{i + 1}" for i in range(rows))
    return " ".join([*words, *(f"step:{t} {marks} w1 {w}" for t, w in enumerate(written, start=1))])


IDENTITY = gate("prox", 0, (NONE, NONE, ONE, NONE))


def test_a_path_that_takes_the_other_side_of_a_jump_is_not_covered_up():
    """r is exactly at the jump of sign(r) for w = 0; a writer takes +1 where the exact value is the mean, 0."""
    right, wrong = (audited(transcript(sign("loss"), IDENTITY, written=[w])) for w in (NONE, "-1.00 +000 +000"))
    assert right.bound == 0 and right.near_jumps == 1
    assert 1 <= wrong.bound < 1 + 1e-12 and wrong.near_jumps == 1


def at_a_jump_that_cannot_be_decided(steps):
    """u = 3 − 1.25·1.2·3 + 0.5·(3 − 1) = −0.5 units, through 3.6, which is no binary number; the map jumps there."""
    doubled = ("+2.00 +000 +000", UNIT, NONE, ONE), ("-2.00 +000 +000", "+0.00 +000 -001", NONE, "-1.00 +000 +000")
    words = {"rate": "+1.25 +000 +000", "ridge": "+1.20 +000 +000", "momentum": "+0.50 +000 +000"}
    words |= {"before": UNIT, "start": "+0.00 +000 +003", "written": [NONE] * steps}
    return transcript(gate("loss", 0, (NONE, NONE, NONE, NONE)), gate("prox", 24, *doubled), **words)


def test_where_no_precision_decides_a_jump_both_sides_count():
    found = audited(at_a_jump_that_cannot_be_decided(1))
    assert found.precision == checker.HIGHEST and 1 <= found.bound < 1 + 1e-8


def scattered(sharpness, count):
    """A derivative of so many pieces, anywhere."""
    draw = random.Random(3)
    number = lambda: f"{draw.choice('+-')}{draw.randrange(1, 10)}.{draw.randrange(100):02} +000 +000"  # noqa: E731 (drawn anew)
    return gate("loss", sharpness, *[[number() for _ in range(4)] for _ in range(count)])


NINE = "+9.00 +000 +000"
STEEP = gate("prox", 0, (NONE, NONE, NINE, NONE))
JUMPING = transcript(sign("loss"), IDENTITY)
SOON = {
    "precision doubled at a jump": (at_a_jump_that_cannot_be_decided(200), "step 1 is up to 1.1e+00"),
    "many hard pieces": (transcript(scattered(24, 1500), IDENTITY), "step 1 is up to"),
    "many soft pieces": (transcript(scattered(0, 1500), IDENTITY, written=[NONE] * 3), "step 1 is up to"),
    "pieces times rows times steps": (
        transcript(scattered(20, 700), IDENTITY, rows=60, written=[NONE] * 30),
        "30 steps on 60 rows need 1260060 values of pieces, more than 1000000",
    ),
    "steps that are not there": (JUMPING.replace("until:1", "until:999999"), "the text ends"),
    "a count of many digits": (JUMPING.replace("until:1", "until:" + "9" * 9999), "word 1 is"),
    "exact weights beyond all floats": (
        transcript(sign("loss"), IDENTITY, rate=NINE, ridge=NINE, start=UNIT, written=[NONE] * 800),
        "step 1 is up to",
    ),
    "a soft gate beyond all floats": (
        transcript(sign("loss", sharpness=23), STEEP, start=UNIT, written=[NONE] * 800),
        "step 1 is up to",
    ),
}


@pytest.mark.parametrize("name", SOON)
def test_small_files_that_ask_for_much_are_refused_soon(name):
    (text, reason), begun = SOON[name], time.process_time()
    with ball_arithmetic(checker.PRECISION), pytest.raises(checker.Refused, match=re.escape(reason)):
        checker.check(text)
    assert time.process_time() - begun < 10 and len(text) < 200_000


def test_steps_before_the_start_are_no_transcript():
    for until, first in ((5, 9), (0, 1)):
        text = transcript(sign("loss"), IDENTITY, written=[])
        text = text.replace("until:0", f"until:{until}").replace("step:0", f"step:{first}")
        with pytest.raises(checker.Refused, match=f"until:{until} is before step:{first}"):
            audited(text.replace("step:-1", f"step:{first - 1}"))


def test_a_distance_counts_every_weight_and_every_small_number():
    for balls in ([arb(0), arb("nan")], [arb("nan"), arb(0)], [arb(0), arb(0, math.inf)]):
        assert checker._distance(balls, (0, 0)) == math.inf
    assert checker._distance([arb(2) ** -5000, arb(0)], (0, 0)) == 1e-300
    assert checker._distance([arb(3), arb(5)], (3, 5)) == 0.0


@pytest.mark.parametrize("within", [0.0, -1.0, math.inf, math.nan])
def test_a_limit_is_a_positive_number(within):
    with ball_arithmetic(checker.PRECISION), pytest.raises(ValueError, match="wanted a positive number"):
        checker.check(TEXTS[0], within)


def test_overflow_ends_a_transcript_and_is_no_success():
    words = TEXTS[0].split()
    at = words.index("step:3")
    stopped = " ".join([*words[: at + 7], "w1", "overflow"])
    transcript = checker.read(stopped)
    assert transcript.overflow and len(transcript.written) == 2
    with ball_arithmetic(checker.PRECISION), pytest.raises(checker.Refused, match="overflow at step 3 of 4"):
        checker.check(stopped)


def test_the_file_checks_transcripts_without_emulon_and_the_command_with_it(tmp_path, capsys):
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
    assert cli.main(["check", str(good)]) == 0 and "holds: every weight" in capsys.readouterr().out
    assert cli.main(["check", str(bad), "--within", "1e-9"]) == 1 and "is up to" in capsys.readouterr().err
    assert cli.main(["check", "certificate.json", "--within", "1"]) == 2
