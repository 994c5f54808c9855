"""Methods on planted models: questions have true answers, scores say how near they are, and chance scores chance."""

from __future__ import annotations

import copy
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emulon import cli, planted
from emulon.core.errors import BadShape, EmulonError
from emulon.planted.benchmark import (
    METHODS,
    Answers,
    Change,
    Questions,
    Row,
    Which,
    ask,
    method_named,
    over_variants,
    score,
    score_models,
    summary,
)
from emulon.planted.benchmark.methods import alignment, circuits
from emulon.planted.benchmark.methods.probes import probe
from emulon.planted.benchmark.questions import CANDIDATES, NONE, PROMPTS
from emulon.planted.benchmark.scoring import area
from emulon.planted.benchmark.split import BadEntry
from emulon.planted.benchmark.study import VARIANTS
from emulon.report.benchmark import check

pytest.importorskip("transformers", reason="planted models are GPT2Models (pip install 'emulon[hf]')")


@pytest.fixture(scope="module")
def variant() -> planted.PlantedModel:
    return planted.obfuscate(planted.plant("sgd", samples=4), seed=1)


@pytest.fixture(scope="module")
def questions(variant: planted.PlantedModel) -> Questions:
    return ask(variant, seed=3)


def held_in(questions: Questions) -> torch.Tensor:
    """Whether a register holds each quantity in each stream at each token."""
    held = torch.zeros(len(questions.key.held), *questions.subject.run.streams.shape[0::2][:2])
    for mask, places in zip(held, questions.key.held, strict=True):
        mask[tuple(torch.tensor(places).T)] = 1.0
    return held.bool()


def test_a_quantity_is_in_one_register_where_the_truth_says_and_in_none_elsewhere(
    variant: planted.PlantedModel, questions: Questions
) -> None:
    """Read through the truth's own directions, up to a linear map."""
    streams, quantities = questions.subject.run.streams, questions.subject.quantities
    where = held_in(questions)
    assert len(quantities) > 5 and where.flatten(1).any(dim=1).all() and not where[:, :, 0].any()
    registers = [one.name for one in variant.truth.registers.values() if one.kind in ("input", "register")]

    def left(quantity: torch.Tensor, stream: int, token: int) -> float:
        wanted, out = quantity - quantity.mean(dim=0), []
        for name in registers:
            read = variant.truth.read(name, streams[stream, :, token])
            if read.shape == quantity.shape:
                known = read - read.mean(dim=0)
                out.append((wanted - known @ torch.linalg.lstsq(known, wanted, driver="gelsd").solution).norm())
        return float(min(out) / wanted.norm())

    for quantity, held in zip(quantities, where, strict=True):
        assert all(left(quantity, *place) < 1e-4 for place in held.nonzero()[::7].tolist())
        elsewhere = (~held).nonzero()
        assert all(left(quantity, *place) > 1e-4 for place in elsewhere[elsewhere[:, 1] > 0][::7].tolist())


def perfect(questions: Questions) -> Answers:
    low = questions.key.parameter or 0.0
    which = Which(questions.key.kind, frozenset({questions.key.kind}), (low - 1e-6, low + 1e-6))
    heads, mlps = (torch.tensor(one).double() for one in (questions.key.heads, questions.key.mlps))
    return Answers(held_in(questions).double(), heads, mlps, which)


def test_the_truth_scores_best_and_its_opposite_worst(questions: Questions) -> None:
    best = score(perfect(questions), questions)
    assert math.isnan(best.pop("refused"))  # there is nothing to refuse
    assert best == {
        "where": 0, "found": 1, "what": 1, "circuit": 1, "which": 1, "allowed": 1, "power": 1, "coverage": 1,
    }  # fmt: skip
    answers = perfect(questions)
    wrong = Answers(-answers.places, -answers.heads, -answers.mlps, Which("ridge", frozenset(CANDIDATES), (0.0, 0.1)))
    worst = score(wrong, questions)
    assert worst["where"] > 1 and math.isnan(worst["coverage"])
    assert [worst[name] for name in ("found", "what", "circuit", "which", "power")] == [0, 0, 0, 0, 0]
    assert worst["allowed"] == 1
    unsure = replace(answers, which=Which(questions.key.kind, frozenset(), (0.0, 0.1)))
    assert score(unsure, questions)["coverage"] == 0
    other = replace(questions, key=replace(questions.key, kind=NONE, parameter=None))
    assert score(Answers(which=Which(NONE)), other)["refused"] == 1 and score(wrong, other)["refused"] == 0
    assert score(Answers(), questions) == {}
    with pytest.raises(BadShape, match="heads has shape"):
        score(Answers(heads=torch.zeros(len(answers.mlps), 99), mlps=answers.mlps), questions)


def test_what_is_equal_scores_as_chance_and_rounding_is_no_evidence() -> None:
    used = torch.tensor([True, True, False, False])
    assert area(torch.zeros(4).double(), used) == 0.5
    assert area(torch.tensor([1.0, 1e-9, 0.0, 0.0]).double(), used) == 0.75
    assert math.isnan(area(torch.zeros(4).double(), torch.ones(4).bool()))


def test_a_change_is_what_it_says_alone_and_side_by_side(questions: Questions) -> None:
    """Own outputs put back change nothing; a head set to zero is the model without its rows."""
    subject = questions.subject.few(4)
    block, head = torch.tensor(questions.key.heads).nonzero()[-1].tolist()
    run = subject.run
    own = [Change(block, head, run.heads[block, :, :, head]), Change(block, None, run.mlps[block])]
    gone = Change(block, head, torch.zeros_like(own[0].value))
    answers = subject.with_changes([*own, gone])
    assert torch.allclose(answers[:2], run.answers.expand(2, -1, -1), atol=1e-9)
    weight = subject.model.h[block].attn.c_proj.weight
    before, rows = weight.data.clone(), slice(head * gone.value.shape[-1], (head + 1) * gone.value.shape[-1])
    weight.data[rows] = 0.0
    try:
        without = subject.activations(subject.prompts).answers
    finally:
        weight.data.copy_(before)
    assert torch.allclose(answers[2], without, atol=1e-9) and (without - run.answers).abs().max() > 1e-3


def test_slopes_are_those_of_small_changes(questions: Questions) -> None:
    subject = questions.subject.few(4)
    run, slopes, small = subject.run, subject.slopes, 1e-5
    block = int(torch.tensor(questions.key.mlps).nonzero()[-1])
    towards = torch.randn(run.mlps[block].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    moved = [Change(block, None, run.mlps[block] + by * towards) for by in (small, -small)]
    above, below = subject.with_changes(moved).sum(dim=(1, 2))
    assert float((above - below) / (2 * small)) == pytest.approx(float((slopes.mlps[block] * towards).sum()), rel=1e-4)


@pytest.mark.parametrize("name", ["activation-patching", "acdc"])
def test_nothing_moves_where_the_other_prompt_is_the_same(name: str, questions: Questions) -> None:
    subject = questions.subject.few(8)
    same, found = METHODS[name](replace(subject, others=subject.prompts)), METHODS[name](subject)
    assert same.heads is not None and same.mlps is not None and found.mlps is not None
    assert max(same.heads.abs().max(), same.mlps.abs().max()) < 1e-9 and found.mlps.max() > 1e-3


def test_a_control_takes_off_what_a_place_gives_away_of_anything(questions: Questions) -> None:
    linear, control = (METHODS[name](questions.subject).places for name in ("linear-probe", "control-probe"))
    assert linear is not None and control is not None
    given_away = linear - control
    assert (given_away >= 0).all() and given_away.max() > 0.02, "a control that finds nothing takes nothing off"
    assert (given_away - given_away[0]).abs().max() < 1e-9, "the control is the same, whatever quantity is asked for"


def test_a_probe_is_scored_on_prompts_that_it_was_not_fitted_to() -> None:
    """Forty random numbers explain most of what ninety prompts say, and nothing of what other prompts do."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 3, 90, 40, generator=generator, dtype=torch.float64)
    assert probe(inputs, (torch.randn(90, 2, generator=generator, dtype=torch.float64),)).max() < 0.1


def test_attributions_of_prompts_do_not_cancel(questions: Questions) -> None:
    """Of two prompts it is the mean of those of each, whatever their signs."""
    two = questions.subject.few(2)
    parts = [replace(two.few(1), prompts=two.prompts[i : i + 1], others=two.others[i : i + 1]) for i in range(2)]
    both, one, other = (METHODS["attribution-patching"](each) for each in (two, *parts))
    for name in ("heads", "mlps"):
        torch.testing.assert_close(getattr(both, name), (getattr(one, name) + getattr(other, name)) / 2)


def test_direct_attribution_is_of_the_tokens_where_answers_are_read(questions: Questions) -> None:
    subject = questions.subject.few(8)
    run, before = subject.run, METHODS["readout-attribution"](subject)

    def with_nothing_at(token: int) -> Answers:
        heads, mlps = run.heads.clone(), run.mlps.clone()
        heads[:, :, token::2], mlps[:, :, token::2] = 0.0, 0.0
        other = replace(subject)
        other.__dict__["run"] = replace(run, heads=heads, mlps=mlps)
        return METHODS["readout-attribution"](other)

    unread, read = with_nothing_at(0), with_nothing_at(1)
    assert before.heads is not None and before.mlps is not None and unread.heads is not None and unread.mlps is not None
    assert torch.equal(unread.heads, before.heads) and torch.equal(unread.mlps, before.mlps)
    assert read.mlps is not None and before.mlps.max() > 0 and read.mlps.max() == 0


@pytest.mark.parametrize("architecture", ["gpt2", "gpt_neox"])
def test_gradients_along_edges_add_up_to_those_of_streams(architecture: str) -> None:
    """What follows a block reads its stream by queries, keys, values, MLPs and the readout, and by nothing else."""
    model = planted.obfuscate(planted.plant("sgd", samples=4, architecture=architecture), seed=1)
    few = ask(model, seed=3).subject.few(4)
    total = torch.zeros_like(few.slopes.streams[0])
    for block, gradients in reversed(list(circuits.gradients_of_inputs(few, steps=1))):
        if block < few.blocks:
            torch.testing.assert_close(total, few.slopes.streams[block + 1])
        total = total + sum(gradient.sum(dim=0) for gradient in gradients.values())
    torch.testing.assert_close(total, few.slopes.streams[0])


def test_attention_written_out_is_that_of_torch(questions: Questions) -> None:
    few = questions.subject.few(4)
    with circuits.explicit_attention():
        torch.testing.assert_close(few.activations(few.prompts).answers, few.run.answers)


def test_swapped_answers_are_those_of_the_network_with_the_next_prompts_quantity(
    variant: planted.PlantedModel, questions: Questions
) -> None:
    """By interventions in the network, where the questions ask the program."""
    xs, ys = variant.draw(2 * PROMPTS, seed=3)
    values = variant.values(xs, ys)
    swapped, count = questions.subject.swapped, questions.subject.swapped.shape[1]
    assert (swapped - questions.subject.run.answers[:count]).abs().amax(dim=(1, 2)).min() > 1e-4

    def answers(name: str, token: int) -> torch.Tensor:
        here = values[name][:count]
        added = torch.zeros_like(here)
        added[:, token] = here[:, token].roll(-1, dims=0) - here[:, token]
        return variant(xs[:count], ys[:count], added={name: added})

    for quantity, wanted in zip(questions.subject.quantities, swapped, strict=True):
        versions = [  # a quantity may be in several; the first that ŷ depends on is the one that is swapped
            (name, token)
            for name, value in values.items()
            for token in range(value.shape[1])
            if value.shape[2] == quantity.shape[1] and torch.equal(value[:PROMPTS, token], quantity)
        ]
        assert any(torch.allclose(answers(*version), wanted, atol=1e-6) for version in versions)


def test_an_interchange_at_a_true_place_changes_answers_as_foretold(questions: Questions) -> None:
    places = METHODS["das"](questions.subject).places
    assert places is not None and places.max() <= 2
    best = places.flatten(1).max(dim=1)
    held = held_in(questions).flatten(1).gather(1, best.indices[:, None])[:, 0]
    assert (best.values > 1.75).sum() > len(places) / 2 and held.sum() > len(places) / 2
    same = replace(questions.subject, swapped=questions.subject.run.answers.expand(len(places), -1, -1) + 1.0)
    nothing = METHODS["das"](same).places
    assert nothing is not None and nothing.max() < 1.5, "no interchange adds one to every answer"


def some_places(questions: Questions) -> list[tuple[int, int, int]]:
    """A true place of each quantity, by stream."""
    middle = [held[len(held) // 2] for held in questions.key.held]
    return sorted(((index, *place) for index, place in enumerate(middle)), key=lambda place: place[1])


def test_training_finds_what_an_interchange_must_replace(questions: Questions) -> None:
    """From random subspaces, on pairs of prompts that are not those of the score."""
    places, tested = some_places(questions), torch.arange(PROMPTS - 32, PROMPTS)
    interchanges = alignment.Interchanges(questions.subject, places)
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(questions.subject.prompts.shape[2], 2, generator=generator).double() for _ in places]
    before = torch.linalg.qr(torch.stack(start)).Q
    after = interchanges.trained(start)
    assert torch.allclose(after.mT @ after, torch.eye(2).double().expand(len(places), 2, 2), atol=1e-9)
    better = interchanges.errors(after, tested) < interchanges.errors(before, tested)
    assert better.double().mean() > 0.5


def test_interchanges_are_those_of_pyvene(questions: Questions) -> None:
    pyvene = pytest.importorskip("pyvene", reason="another implementation of interchanges")
    few, rows = replace(questions.subject), torch.arange(8)
    places = some_places(questions)[-3:]
    interchanges = alignment.Interchanges(few, places)
    generator = torch.Generator().manual_seed(1)
    bases = torch.linalg.qr(torch.randn(3, few.prompts.shape[2], 2, generator=generator).double()).Q
    ours = interchanges.answers(bases, rows)
    for (_, stream, token), basis, mine in zip(places, bases, ours, strict=True):
        part = (stream - 1, "block_output") if stream else (0, "block_input")
        one = pyvene.RepresentationConfig(*part, "pos", 1, low_rank_dimension=2)
        config = pyvene.IntervenableConfig([one], pyvene.LowRankRotatedSpaceIntervention)
        model = pyvene.IntervenableModel(config, copy.deepcopy(few.model))  # it removes a model's hooks
        ((key, intervention),) = model.interventions.items()
        intervention.to(basis.dtype).rotate_layer.weight = basis
        source = few.run.streams[stream, :, token : token + 1].roll(-1, dims=0)[rows]
        with torch.no_grad():
            _, changed = model(
                {"inputs_embeds": few.prompts[rows]},
                source_representations={key: source},
                unit_locations={"base": token},
            )
        # pyvene rotates the whole stream, pads included, and rounds relative to these.
        torch.testing.assert_close(mine, few.answers(changed.last_hidden_state), rtol=0.0, atol=1e-4)
    assert (ours - few.run.answers[rows]).abs().max() > 1e-2


def test_a_method_without_its_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], questions: Questions
) -> None:
    monkeypatch.setattr("emulon.planted.benchmark.study.ask", lambda *_, **__: questions)
    monkeypatch.setitem(sys.modules, "gim", None)
    words = ["gim", "random", "--models", "1", "--obfuscate", "plain", "--processes", "1"]
    assert cli.main(["benchmark", *words]) == 0
    assert "needs gim-explain; pip install" in capsys.readouterr().out


def test_every_method_beats_chance_at_what_it_answers() -> None:
    """An sgd and a moving average, plain and under all obfuscations at once."""
    variants = ("plain", "all at once")
    rows = score_models(tuple(METHODS), (1, 2), variants)
    cells = {(one.method, one.measure, one.variant): one for one in summary(rows)}
    missing = {row.method for row in rows if row.missing}
    assert missing <= {"gim"}
    for name in set(METHODS) - missing:
        asked = {measure for method, measure, _ in cells if method == name}
        assert asked
        for measure in asked & {"where", "what", "circuit", "which"} if name != "random" else ():
            for variant in variants:
                value, chance = (cells[one, measure, variant].score.value for one in (name, "random"))
                if measure == "where":
                    assert value < chance, (name, measure, variant)
                elif name != "readout-attribution":  # it sees the last step alone
                    assert value > (0.4 if measure == "what" else 0.6), (name, measure, variant)
    assert {row.seed for row in rows} == {1, 2} and len(rows) == 2 * 2 * len(METHODS)


def test_guesses_score_chance(questions: Questions) -> None:
    guessed = []
    for seed in range(200):
        subject = replace(questions.subject, seed=seed)
        guessed.append(score(METHODS["random"](subject), questions))
    for measure, chance in (("what", 0.25), ("circuit", 0.5), ("which", 1 / 7), ("found", None)):
        values = torch.tensor([one[measure] for one in guessed], dtype=torch.float64)
        wanted = held_in(questions).double().mean().item() if chance is None else chance
        assert abs(values.mean().item() - wanted) < 4 * values.std().item() / len(values) ** 0.5, measure


def test_changes_against_the_plain_are_paired_by_model() -> None:
    rows = [
        Row(seed, "sgd", variant, "mine", {"what": 0.1 * seed + by, "circuit": math.nan})
        for seed in range(6)
        for variant, by in (("plain", 0.0), ("rotated", -0.2))
    ]
    [plain, rotated] = summary(rows)
    assert plain.change is None and plain.moved == "" and rotated.moved == "↓"
    assert rotated.change is not None and rotated.change.high == pytest.approx(-0.2) and plain.models == 6


RECORDS = sorted((Path(__file__).parents[2] / "results" / "benchmark").glob("methods*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_numbers_that_are_kept_are_of_every_method_and_chance_is_chance_in_them(path: Path) -> None:
    record = json.loads(path.read_text())
    check(record)
    assert record["models"] >= 50 and set(record["scores"]) == set(METHODS) and not record["missing"]
    for measure, chance in (("what", 0.25), ("circuit", 0.5), ("which", 1 / 7)):
        variants = record["scores"]["random"][measure]
        assert set(variants) == set(VARIANTS)
        rows = [
            Row(seed, "", variant, "random", {measure: math.nan if value is None else value})
            for variant, values in variants.items()
            for seed, value in enumerate(values)
        ]
        found = over_variants(rows, "random", measure)
        # Six of these for both architectures: an interval of about four standard errors to each side.
        assert found is not None and abs(found[0].value - chance) < found[0].high - found[0].low, measure
    covered = record["coverage"]["identify"]
    assert covered["intervals"] < 100 or 0.9 <= covered["value"] <= 0.99
    record["cells"] = [one for one in record["cells"] if one["method"] == "random"]
    record["scores"] = {"random": record["scores"]["random"]}
    record["cells"][0]["score"]["value"] += 0.01
    with pytest.raises(BadEntry, match="means are not those of its scores"):
        check(record)


def test_both_architectures_are_scored_in_a_quarter_of_an_hour() -> None:
    records = [json.loads(path.read_text()) for path in RECORDS]
    assert {record["architecture"] for record in records} == {"gpt2", "llama"}
    assert sum(record["seconds"] for record in records) < 15 * 60, "as measured by make benchmark on two cores"


def test_variants_of_a_model_are_counted_together() -> None:
    rows = [Row(seed, "sgd", variant, "mine", {"coverage": float(seed > 0)}) for seed in range(4) for variant in "ab"]
    rows.append(Row(5, "sgd", "a", "mine", {"coverage": math.nan}))
    found = over_variants(rows, "mine", "coverage")
    assert found is not None and found[0].value == 0.75 and found[1] == 8
    assert found[0].low <= 0.25 and found[0].high == 1.0  # four planted models, not eight
    assert over_variants(rows, "mine", "where") is None


MINE = """
import torch
from emulon.planted.benchmark import Answers

def last_stream(subject):
    places = torch.zeros(len(subject.quantities), subject.blocks + 1, subject.prompts.shape[1])
    places[:, -1] = 1.0
    return Answers(places=places)

nothing = 3
"""


def test_a_method_of_ones_own_is_a_file_and_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    words = ["mine.py:last_stream", "--models", "1", "--seed", "2", "--obfuscate", "plain", "--processes", "1"]
    assert cli.main(["benchmark", *words, "--json", "numbers.json", "--report", "page"]) == 0
    assert "mine.py:last_stream" in capsys.readouterr().out
    record = json.loads(Path("numbers.json").read_text())
    assert record["models"] == 1 and {cell["measure"] for cell in record["cells"]} == {"where", "found", "what"}
    assert "moving average" in record["mechanisms"][0]
    assert record["scores"]["mine.py:last_stream"]["found"] == {"plain": [record["cells"][1]["score"]["value"]]}
    assert "mine.py:last_stream" in Path("page/index.html").read_text(encoding="utf-8")
    for wrong, why in (
        ("mine.py:nothing", "has no function"),
        ("none.py:f", "there is no file"),
        ("no_such_module:f", "No module"),
        ("linear-prob", "did you mean linear-probe"),
    ):
        with pytest.raises(EmulonError, match=why):
            method_named(wrong)
    assert cli.main(["benchmark", "random", "--obfuscate", "rotatd"]) == 2
    assert "did you mean rotated" in capsys.readouterr().err


WRONG = """
import time
import torch
from emulon.planted.benchmark import Answers, Which

def nothing(subject): return None
def scores(subject): return {"heads": 1}
def words(subject): return Answers(heads="all")
def name(subject): return Answers(which="sgd")
def number(subject): return Answers(which=Which("sgd", interval=3))
def several(subject): return Answers(which=Which("sgd", possible=["sgd"]))
def failing(subject): return 1 / 0
def empty(): return Answers()

def slow(subject):
    open(f"begun {time.time()}", "w").close()
    time.sleep(60)
"""


def test_what_a_method_of_ones_own_gets_wrong_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], questions: Questions
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("emulon.planted.benchmark.study.ask", lambda *_, **__: questions)
    Path("wrong.py").write_text(WRONG)
    for method, why in (
        ("nothing", "returned a NoneType; a method returns emulon.planted.benchmark.Answers"),
        ("scores", "returned a dict; a method returns emulon.planted.benchmark.Answers"),
        ("words", "wrong.py:words failed (planted model 0, plain): "),
        ("name", "wrong.py:name failed (planted model 0, plain): "),
        ("number", "wrong.py:number failed (planted model 0, plain): "),
        ("several", "wrong.py:several failed (planted model 0, plain): "),
        ("failing", "wrong.py:failing failed (planted model 0, plain): ZeroDivisionError: division by zero"),
        ("empty", "wrong.py:empty failed (planted model 0, plain): TypeError: empty() takes 0 positional arguments"),
    ):
        words = [f"wrong.py:{method}", "--models", "1", "--obfuscate", "plain", "--processes", "1"]
        assert cli.main(["benchmark", *words]) == 2
        error = capsys.readouterr().err
        assert why in error and error.count("\n") == 1


def test_an_interrupt_ends_all_processes_at_once(tmp_path: Path) -> None:
    """Each of them would sleep for a minute, and all of them hear of it, as in a terminal."""
    (tmp_path / "wrong.py").write_text(WRONG)
    words = ["benchmark", "wrong.py:slow", "--models", "4", "--obfuscate", "plain", "--processes", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "emulon.cli", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while process.poll() is None and len(list(tmp_path.glob("begun*"))) < 2:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    began = time.perf_counter()
    _, error = process.communicate(timeout=50)
    assert (process.returncode, error) == (130, "emulon benchmark: stopped\n")
    assert time.perf_counter() - began < 10  # on a busy machine; a second or less on one with nothing else to do
    with pytest.raises(ProcessLookupError):
        for _ in range(100):  # ten seconds, and no longer than it takes
            os.killpg(process.pid, 0)
            time.sleep(0.1)
