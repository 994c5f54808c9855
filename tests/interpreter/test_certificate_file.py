"""A certificate file is accepted as it was written, and refused with anything in it changed.

EMULON_TAMPERINGS=1000 python -m pytest tests/interpreter/test_certificate_file.py   changes a thousand of each kind.
"""

import copy
import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from emulon import cli
from emulon.algorithms import Lasso, NamedAlgorithm, Ridge
from emulon.certify import checker
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter import Interpreter, Program, compile, save
from emulon.interpreter.certificate_file import certificate_of

# With the hashes made anew everything that follows is computed again, which takes longer: fewer by default.
TAMPERINGS, FORGERIES = (int(os.environ.get("EMULON_TAMPERINGS", count)) for count in ("40", "4"))
ORIGINALS = ["ridge", "lasso", "logistic_regression"]
Files = dict[str, Path]
Made = tuple[Files, dict[str, Any], str]


@pytest.fixture(scope="session", params=ORIGINALS)
def made(
    request: pytest.FixtureRequest, programs: dict[str, Program], tmp_path_factory: pytest.TempPathFactory
) -> Made:
    """The files, the certificate, and its text."""
    folder, program = tmp_path_factory.mktemp(request.param), programs[request.param]
    files = {name: folder / name for name in ("program", "interpreter")}
    interpreter = Interpreter.fitting(program)
    save(program, files["program"])
    save(interpreter, files["interpreter"])
    certificate = certificate_of(program, interpreter, files)
    return files, certificate, checker.canonical(certificate)


def checked(text: str, **files: str) -> str:
    with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
        return checker.check(text, **files)


def refused(certificate: dict[str, Any], *, signed: bool = True) -> str:
    """Why a certificate does not hold, its hashes made anew."""
    if signed:
        certificate = certificate | {"sha256": checker.hashes(certificate)}
    with pytest.raises((checker.Refused, ValueError)) as caught:
        checked(checker.canonical(certificate))
    said = str(caught.value) if caught.type is checker.Refused else "unreadable"
    assert "\n" not in said
    return said


def leaves(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        return [leaf for name, part in items for leaf in leaves(part, (*path, name))]
    return [path]


def tampered(certificate: dict[str, Any], draw: random.Random, start: tuple[Any, ...] = ()) -> dict[str, Any]:
    """With one digit, sign, letter or flag changed, anywhere below `start`."""
    certificate = copy.deepcopy(certificate)
    place: Any = certificate
    path = draw.choice([leaf for leaf in leaves(certificate) if leaf[: len(start)] == start])
    for name in path[:-1]:
        place = place[name]
    old = place[path[-1]]
    if isinstance(old, str):
        digits = [at for at, letter in enumerate(old) if letter.isalnum()]
        at = draw.choice(digits)
        place[path[-1]] = old[:at] + draw.choice([c for c in "0123456789" if c != old[at]]) + old[at + 1 :]
    elif isinstance(old, float):
        place[path[-1]] = draw.choice([old + 1, old - 1, math.nextafter(old, math.inf), math.nextafter(old, -math.inf)])
    else:
        place[path[-1]] = not old if isinstance(old, bool) else 1 if old is None else old + draw.choice([1, -1])
    assert place[path[-1]] != old
    return certificate


def test_the_original_is_accepted_and_says_what_the_library_promises(made: Made, programs: dict[str, Program]):
    files, certificate, text = made
    assert "every weight is within" in checked(text, **{name: str(path) for name, path in files.items()})
    program = next(each for each in programs.values() if each.name == certificate["program"]["facts"]["name"])
    promised = program.certificate
    # The checker takes all keys of the line that do not matter for the largest of them, the library each as it is.
    follows = certificate["follows"]
    assert promised.bound * 0.999 <= float(follows["bound"]) <= promised.bound * 1.02


@pytest.mark.parametrize("algorithm", [Ridge(steps=3), Lasso(0.1, steps=3)])
def test_float32_rows_that_are_read_large_are_accepted(tmp_path: Path, algorithm: NamedAlgorithm):
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)
    program = compile(algorithm, data=(x, x[:, 0]), dtype=torch.float32)
    interpreter, files = Interpreter.fitting(program), {name: tmp_path / name for name in ("program", "interpreter")}
    save(program, files["program"])
    save(interpreter, files["interpreter"])
    assert checked(checker.canonical(certificate_of(program, interpreter, files)))


def test_whatever_is_changed_it_is_refused(made: Made):
    draw = random.Random(0)
    for _ in range(TAMPERINGS):
        said = refused(tampered(made[1], draw), signed=False)
        assert re.match(r"(program|interpreter|claims|proofs|follows)/.+: |format: ", said), said


@pytest.mark.parametrize(
    "where", [("follows", "terms"), ("follows", "bound"), ("claims", "line"), ("claims", "gradient")]
)
def test_what_follows_from_claims_is_recomputed_whatever_the_hashes_say(made: Made, where: tuple[str, ...]):
    draw = random.Random(2)
    for _ in range(FORGERIES):
        changed = tampered(made[1], draw, where)
        said = refused(changed)
        # Where the claim is used, if not where it stands.
        assert re.match(r"(claims|follows|unreadable|program.facts.(proximal|gradient.bounds))", said), said


@pytest.mark.parametrize("made", ["lasso"], indirect=True)
def test_an_entry_more_or_fewer_is_refused_wherever_it_is(made: Made):
    """Under names of the rules, too, in every dictionary but those of hashes and of what follows."""

    def places(content: Any, path: str = "") -> list[str]:
        parts = (
            content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
        )
        below = [place for name, part in parts for place in places(part, f"{path}/{name}")]
        return [path, *below] if isinstance(content, dict) else below

    found = [place.split("/")[1:] for name in checker.SECTIONS[:-1] for place in places(made[1][name], f"/{name}")]
    assert len(found) > 25
    for path in found:
        for more in (True, False):
            changed = copy.deepcopy(made[1])
            place: Any = changed
            for name in path:
                place = place[int(name) if isinstance(place, list) else name]
            place.update({"u": 0.0}) if more else place.pop(next(iter(place)))
            said = refused(changed)
            assert said == "unreadable" or "needs the entries" in said or "has two dtypes" in said, said


@pytest.mark.parametrize("made", ["lasso"], indirect=True)
@pytest.mark.parametrize(
    ("name", "value"),
    [("negative_curvature", -1.0), ("step_size", -0.1), ("l1", -0.1), ("l2", -0.1), ("step_size", 0.0)],
)
def test_facts_of_no_algorithm_are_refused_though_all_that_follows_follows(made: Made, name: str, value: float):
    """Slopes of at least 1 are no curvature that any data have; a negative threshold pulls numbers apart."""
    facts = copy.deepcopy(made[1])
    facts["program"]["facts"][name] = value
    assert re.match(rf"program/facts(/{name})?: (is negative|are none that descent can have)", refused(facts))


def test_it_is_about_these_files(made: Made, tmp_path: Path):
    files, _, text = made
    with pytest.raises(checker.Refused, match="program: is not what is in"):
        checked(text, program=str(files["interpreter"]))
    content = bytearray(files["interpreter"].read_bytes())
    content[-3] ^= 1
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(checker.Refused, match="interpreter: is not what is in"):
        checked(text, interpreter=str(tmp_path / "other"))


@pytest.mark.parametrize("made", ["lasso"], indirect=True)
def test_the_command_and_the_script_agree(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files, _, text = made
    out = tmp_path / "certificate.json"
    out.write_text(text)
    assert cli.main(["check", str(out)]) == 0
    alone = [sys.executable, "-I", checker.__file__, str(out), "--program", str(files["program"])]
    assert subprocess.run(alone, check=False).returncode == 0
    capsys.readouterr()
    out.write_text(json.dumps({"format": "other"}))
    assert cli.main(["check", str(out)]) == 1 and "format: is not" in capsys.readouterr().err
    out.write_text(json.dumps({"format": "emulon certificate 1"}))
    assert cli.main(["check", str(out)]) == 1 and capsys.readouterr().err.count("\n") == 1
    out.write_text("{")
    assert cli.main(["check", str(out)]) == 2 and "cannot be read" in capsys.readouterr().err
    assert cli.main(["check", str(tmp_path / "none")]) == 2


def test_flint_is_left_as_it_was_and_a_check_in_another_precision_is_refused(made: Made):
    with ball_arithmetic(100, 3), pytest.raises(checker.Refused, match="flint: has another precision"):
        checker.check(made[2])
