"""The command line as a new user meets it: help that teaches, and one clear line for every mistake."""

import dataclasses
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import emulon
from emulon import cli
from emulon.cli import options_of

SOURCE = Path(cli.__file__).parents[2]
# Words each command needs before it looks at anything else.
# Commands of several words, tested in test_llama_and_canary.py.
GROUPS = {"llama", "canary"}
NEEDED = {
    "compile": ["ridge", "--out", "never"],
    "exec": ["interpreter", "program"],
    "predict": ["model", "table"],
    "show": ["program"],
    "check": ["certificate"],
    "approximate": ["t", "-1", "1"],
    "train": ["standard"],
    "identify": ["mine.py:predict"],
}


def refused(capsys: pytest.CaptureFixture[str], command: str, *words: str) -> str:
    """Exit code 2, nothing but one line on stderr; that line."""
    code = cli.main([command, *words])
    out, err = capsys.readouterr()
    assert code == 2 and not out, (code, out, err)
    assert err.startswith(f"emulon {command}: ") and err.count("\n") == 1 and "│" not in err, err
    return err


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


def flags_of(command: str) -> list[str]:
    fields = dataclasses.fields(cli.command_of(command).options)
    return [
        f"--{field.name.replace('_', '-')}" for field in fields if "Positional" not in field.type and field.name[3:]
    ]


@pytest.mark.parametrize("command", [name for name in cli.COMMANDS if name not in GROUPS])
def test_a_misspelt_option_is_answered_with_the_nearest(capsys, command):
    for option in flags_of(command):
        misspelt = option[:-2] + option[-1] + option[-2] + "x"
        for words in ([misspelt, "1"], [f"{misspelt}=1"]):
            said = refused(capsys, command, *NEEDED.get(command, []), *words)
            assert f"there is no option {misspelt}; did you mean {option}?" in said


def lines_of(text: str) -> list[list[str]]:
    """The commands of a text: after the prompt's place, before a description or a remark."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("emulon ")]
    return [shlex.split(part, comments=True)[1:] for line in lines for part in line.partition("   ")[0].split("&&")]


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_the_examples_of_the_help_can_be_read(command):
    examples = lines_of(cli.command_of(command).examples)
    assert examples
    for name, *words in examples:
        assert options_of(name, words)


def test_waiting_threads_let_others_work_unless_the_user_says_how_they_wait(monkeypatch, capsys):
    for given, kept in ((None, "1000"), ("7", "7")):
        monkeypatch.setenv("GOMP_SPINCOUNT", given or "")
        if given is None:
            monkeypatch.delenv("GOMP_SPINCOUNT")
        assert cli.main(["approximate", "t", "1", "-1"]) == 2
        assert os.environ["GOMP_SPINCOUNT"] == kept


def test_the_commands_of_the_readme_can_be_read():
    readme = (SOURCE.parent / "README.md").read_text()
    commands = lines_of("\n".join(re.findall(r"^```\w*\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)))
    assert len(commands) >= 5 and {name for name, *_ in commands} <= set(cli.COMMANDS)
    for name, *words in commands:
        assert options_of(name, words)


@pytest.mark.parametrize(
    ("command", "words", "reason"),
    [
        ("run", ["rigde"], "did you mean ridge?"),
        ("run", ["--data", "diabtes"], "did you mean diabetes?"),
        ("exec", ["interpreter", "program", "--mode", "fsat"], "did you mean fast?"),
        ("approximate", ["softplsu", "-1", "1"], "did you mean softplus?"),
        ("benchmark", ["liner-probe"], "did you mean linear-probe?"),
        ("train", ["standrad"], "did you mean standard?"),
        ("train", ["standard", "--task", "linaer"], "did you mean linear?"),
        ("train", ["standard", "--vary", "sede=0"], "did you mean seed?"),
        ("run", ["--tolerance", "0"], "--tolerance: 0 is not a positive number"),
        ("run", ["--steps", "0"], "--steps: 0 is not a whole number, 1 or more"),
        ("run", ["--features", "-1"], "--features: -1 is not a whole number, 0 or more"),
        ("run", ["--seed", "-1"], "--seed: -1 is not a whole number in 0 … 2³²−1"),
        ("run", ["--margin", "0.5"], "--margin: 0.5 is not a number in 1 … 1e60"),
        ("run", ["--margin", "1e300"], "--margin: 1e300 is not a number in 1 … 1e60"),
        ("run", ["--mode", "slow"], "--mode: there is no choice 'slow'; choose from fast, reference"),
        ("compile", ["ridge", "--out"], "--out needs a value"),
        ("approximate", ["t", "-1", "one"], "HI: 'one' is not a number"),
        ("train", ["standard", "--layers", "2.5"], "--layers: '2.5' is not a whole number"),
        ("plant", ["sgd", "--out", "never", "--strength", "x"], "--strength: x is not a number, 0 or more"),
    ],
)
def test_a_value_that_makes_no_sense_is_named_with_the_nearest_that_does(capsys, command, words, reason):
    assert reason in refused(capsys, command, *words)


@pytest.mark.parametrize("command", sorted(NEEDED.keys() - {"exec"}))
def test_a_word_too_many_is_named(capsys, command):
    assert "one word too many: 'more'" in refused(capsys, command, *NEEDED[command], "more")


@pytest.mark.parametrize("command", sorted(NEEDED.keys() - {"train", "exec"}))
def test_a_word_that_is_missing_is_named(capsys, command):
    assert "is missing (see emulon" in refused(capsys, command)


def test_an_unknown_command_is_answered_with_the_nearest(capsys):
    for word, said in (("rnu", "command 'rnu'; did you mean run?"), ("--versoin", "did you mean --version?")):
        assert cli.main([word]) == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help_teaches_with_an_example(capsys, command):
    assert cli.main([*command.split(), "--help"]) == 0
    out, err = capsys.readouterr()
    assert "example" in out and f"emulon {command}" in out and not err
    if command in NEEDED:
        assert cli.main([command, *NEEDED[command], "-h"]) == 0


@pytest.mark.parametrize("command", cli.MOVED)
def test_a_command_that_left_says_where_it_is(capsys, command):
    assert cli.main([command, "--help"]) == 2
    assert capsys.readouterr().err == f"emulon: {command} is {cli.MOVED[command]}\n"
    words = cli.SCRIPTS.get(command, "make")
    module = words.removeprefix("python -m ").partition(" ")[0]
    assert words.startswith("make") or importlib.util.find_spec(module) is not None


def test_nothing_at_all_shows_every_command(capsys):
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name}" in out and what in out for name, what in cli.COMMANDS.items())


def test_the_version_is_the_packages(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"emulon {version('emulon')}\n"
    assert emulon.__version__ == version("emulon")


def replaced(monkeypatch: pytest.MonkeyPatch, main) -> None:
    """Every command does this instead of what it does."""
    real = cli.command_of
    monkeypatch.setattr(cli, "command_of", lambda name: real(name)._replace(main=main))


def test_stopping_by_hand_is_one_line_and_code_130(monkeypatch, capsys):
    def interrupted(options: object) -> int:
        raise KeyboardInterrupt

    replaced(monkeypatch, interrupted)
    assert cli.main(["show", "program"]) == 130
    assert capsys.readouterr().err == "emulon show: stopped\n"


def test_a_bug_keeps_its_traceback(monkeypatch):
    def broken(options: object) -> int:
        raise ValueError("a bug")

    replaced(monkeypatch, broken)
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["show", "program"])


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["rnu"]])
def test_help_and_misspelt_commands_do_not_wait_for_torch(words):
    code = f"import sys; from emulon.cli import main; main({words!r}); assert 'torch' not in sys.modules"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr


def test_json_goes_to_a_file_or_alone_to_standard_output(tmp_path, capsys):
    words = ["approximate", "tanh(t)", "-1", "1"]
    assert cli.main([*words, "--quiet", "--json", "new/out.json"]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main([*words, "--json", "-"]) == 0
    kept = json.loads(Path("new/out.json").read_text())
    assert json.loads(capsys.readouterr().out) == kept and kept["keys"] == len(kept["values"]) == 2
    Path("new/out.json").unlink()
    Path("new").rmdir()


def test_a_command_may_have_subcommands(capsys):
    assert cli.main(["canary", "wriet"]) == 2 and "did you mean write?" in capsys.readouterr().err
    assert cli.main(["canary", "write", "--ggfu"]) == 2 and "did you mean --gguf?" in capsys.readouterr().err
    assert cli.main(["canary", "--help"]) == 0 and "write" in capsys.readouterr().out


def test_shells_complete_commands_and_options(capsys):
    assert cli.main(["--completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert "complete -F" in script and "--no-browser" in script and "approximate" in script
    assert cli.main(["--completion", "bsh"]) == 2 and "did you mean bash?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "today"),
    [
        (["compile-network", "m.py:f", "--out", "f", "--margin", "0.25"], {"what": "m.py:f", "margin": 1.25}),
        (
            ["exec-network", "files", "x.csv", "--no-audit"],
            {"files": (Path("files"),), "data": "x.csv", "audit": False},
        ),
        (["sweep", "standard", "--vary", "seed=0,1"], {"model": "standard", "vary": ("seed=0,1",)}),
        (["report", "runs/a"], {"what": Path("runs/a"), "report": Path("runs/a/report")}),
        (["report", "runs/a", "--out", "b"], {"what": Path("runs/a"), "report": Path("b")}),
        (["playground", "--no-open"], {"browser": False}),
        (["run", "--path", "faithful", "--report", "page"], {"mode": "reference", "out": Path("page")}),
    ],
)
def test_commands_of_02_still_work_and_say_their_names_of_today(monkeypatch, capsys, words, today):
    seen = []
    replaced(monkeypatch, lambda options: seen.append(options) or 3)
    assert cli.main(words) == 3
    assert {field: getattr(seen[0], field) for field in today} == today
    assert "since 0.3; the earlier name goes with 0.4\n" in capsys.readouterr().err
