"""`python -m reproduce` on real, quick claims: what it lists, runs, writes and refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from emulon.training import PRESETS, RunFolder
from reproduce.__main__ import main
from reproduce.arguments import run_script
from reproduce.claim import CannotTest, Claim, Scale, Verdict, all_claims
from reproduce.learners import KEPT
from reproduce.record import measure, path_of, write

RESULTS = Path(__file__).parents[2] / "results"

SIZES = {"heads": [4, 8, 16], "tolerances": [1e-2], "datasets": 2}
QUICK = replace(
    all_claims()["emulation-theorem-d.1"],
    name="quick",
    correction="",
    scales={"small": Scale(0.1, SIZES), "paper": Scale(0.1, SIZES | {"datasets": 3})},
)


def command(*words: str) -> int:
    return run_script("reproduce", main, words)


def crash(setting):
    raise RuntimeError("out of luck")


def absent(setting):
    raise CannotTest("needs a thing; install it")


CRASHING, ABSENT = replace(QUICK, name="crashing", run=crash), replace(QUICK, name="absent", run=absent)


@pytest.fixture
def only(monkeypatch):
    """The command with these claims alone."""

    def choose(*claims: Claim) -> None:
        known = {claim.name: claim for claim in claims}
        monkeypatch.setattr("reproduce.claim.all_claims", lambda: known)
        monkeypatch.setattr("reproduce.__main__.all_claims", lambda: known)

    return choose


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The quick claim at both scales, run once."""
    folder = tmp_path_factory.mktemp("results")
    for scale in ("small", "paper"):
        write(measure(QUICK, scale, 0, folder), folder)
    return folder


def test_a_run_writes_numbers_with_what_they_were_made_with(folder):
    record = json.loads((folder / "claims" / "quick.json").read_text())
    assert record["config"] == SIZES and record["seeds"] == [0] and record["seconds"] > 0
    assert all(record[key] for key in ("machine", "commit", "torch", "python", "time"))
    assert json.loads((folder / "claims" / "quick.paper.json").read_text())["config"]["datasets"] == 3


def test_all_goes_on_after_a_crash_and_says_so_in_its_exit_code(only, tmp_path, capsys):
    only(CRASHING, ABSENT, QUICK)
    assert command("--all", "--out", str(tmp_path)) == 1
    said = capsys.readouterr()
    assert "out of luck" in said.err and "1 crashed: crashing" in said.err
    assert "absent: cannot be tested here (needs a thing; install it)" in said.out and "quick: " in said.out
    index = (tmp_path / "README.md").read_text()
    assert "not run" in index and "**cannot be tested here**: needs a thing" in index
    assert (tmp_path / "claims" / "quick.svg").read_text().startswith("<svg")
    assert not list(tmp_path.glob("claims/crashing*")) and not list(tmp_path.glob("claims/absent*.svg"))


def test_figures_and_index_come_back_from_the_numbers_alone(only, tmp_path, monkeypatch):
    monkeypatch.setattr("reproduce.record.code_of", lambda claim: "one code, whatever runs")
    only(QUICK)
    assert command("quick", "--out", str(tmp_path)) == 0
    made = {name: (tmp_path / name).read_bytes() for name in ("claims/quick.svg", "README.md")}
    for name in made:
        (tmp_path / name).unlink()
    only(replace(QUICK, run=crash))
    assert command("--figures", "--out", str(tmp_path)) == 0
    assert made == {name: (tmp_path / name).read_bytes() for name in made}


def test_a_complete_result_is_not_replaced_by_one_that_had_no_time(only, tmp_path, capsys):
    shared = replace(QUICK, run=lambda setting: setting.parts({"one": QUICK.run})["one"])
    only(shared)
    assert command("quick", "--minutes", "0", "--out", str(tmp_path)) == 0
    assert "not measured: one" in capsys.readouterr().out
    assert command("quick", "--out", str(tmp_path)) == 0
    made = path_of("quick", "small", tmp_path).read_bytes()
    assert command("quick", "--minutes", "0", "--out", str(tmp_path)) == 0
    assert "complete result stays" in capsys.readouterr().out
    assert path_of("quick", "small", tmp_path).read_bytes() == made


def test_the_list_shows_states_and_costs(only, folder, capsys):
    only(QUICK, CRASHING)
    assert command("--out", str(folder)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("quick" in line and "0.1 min" in line and QUICK.source in line for line in lines)
    assert any("crashing" in line and "not run" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["emulation-table-5"], "did you mean emulation-table-4?"),
        (["--al"], "did you mean --all?"),
        (["--scale", "huge", "--all"], "invalid choice: 'huge'"),
        (["--all", "emulation-table-4"], "leave the names out"),
        (["emulation-table-4", "--seed", "-1"], "--seed: -1 is not a whole number"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_line_and_exit_code_2(words, reason, capsys):
    assert command(*words) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1


def test_a_scale_that_a_claim_has_not_is_refused_and_all_leaves_it_out(only, tmp_path, capsys):
    only(replace(QUICK, scales={"small": QUICK.scales["small"]}))
    assert command("quick", "--scale", "paper", "--out", str(tmp_path)) == 2
    assert "quick has no paper scale" in capsys.readouterr().err
    assert command("--all", "--scale", "paper", "--out", str(tmp_path)) == 0
    assert not (tmp_path / "claims").exists()


def test_a_learner_below_the_sources_size_decides_nothing():
    scale = Scale(1, at_source_scale=False)
    for state in ("holds", "does not hold"):
        judged = replace(
            QUICK, scales={"small": scale, "gpu": Scale(1)}, judge=lambda _, s=state: Verdict(s, "1", "so")
        )
        assert judged.verdict({}, "small") == Verdict("not tested at scale", "1", f"at this size it {state}: so")
        assert judged.verdict({}, "gpu").state == state
    missing = replace(judged, judge=lambda _: Verdict("cannot be tested here", "–", "no data"))
    assert missing.verdict({}, "small").state == "cannot be tested here"


def test_a_mended_statement_holds_as_corrected_or_not_at_all():
    mended = replace(QUICK, correction="with +1 for −1")
    holds, fails = (replace(mended, judge=lambda _, h=holds: Verdict.that(h, "1", "so")) for holds in (True, False))
    assert holds.verdict({}, "small").state == "holds as corrected"
    assert fails.verdict({}, "small").state == "does not hold"


def test_a_file_that_is_no_result_is_named(only, tmp_path, capsys):
    only(QUICK)
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "quick.json").write_text('{"claim": "quick"}')
    assert command("--out", str(tmp_path)) == 2
    assert "quick.json is not a result" in capsys.readouterr().err


SOURCES = {
    "emulation": "Hu et al. 2025, ",
    "learning": "Akyürek et al. 2022, ",
    "algoformer": "Gao et al. 2024, ",
    "ours": "ours, ",
}


def test_names_are_slugs_and_say_where_they_are_from():
    for claim in all_claims().values():
        assert claim.source.startswith(SOURCES[claim.name.split("-")[0]])
        assert claim.name == claim.name.lower().replace(" ", "-")
        assert "small" in claim.scales and claim.statement.endswith(".") and claim.theirs
        assert claim.verdict({"cannot": "why"}, "small").state == "cannot be tested here"


@pytest.mark.parametrize("name", KEPT)
def test_the_command_of_a_kept_learner_is_its_configuration(name):
    config = RunFolder(RESULTS / "learners" / name).config()
    model, *flags = KEPT[name].split()
    assert model == config.model.model
    if flags[0] == "--preset":
        assert config.task.features == PRESETS[flags[1]].task.features  # the preset may have moved on since
        return
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    for flag, word in given.items():
        value = config.options()[flag.removeprefix("--").replace("-", "_")]
        assert value == type(value)(word), flag


def test_everything_among_the_results_belongs_to_a_claim_a_learner_or_a_benchmark():
    known = {path_of(claim.name, scale, RESULTS, "").name for claim in all_claims().values() for scale in claim.scales}
    assert {path.name.removesuffix(path.suffix) for path in (RESULTS / "claims").iterdir()} <= known
    assert {path.name for path in (RESULTS / "learners").iterdir()} == set(KEPT)
    folders = {"claims", "learners", "bench", "benchmark", "canary", "llama"}
    assert {path.name for path in RESULTS.iterdir()} <= {"README.md", *folders}
