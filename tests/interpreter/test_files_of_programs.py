"""Files give the same bits elsewhere, or a one-line refusal."""

import json
import math
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from library import NAMES, dataset
from safetensors import safe_open
from safetensors.torch import save_file

from emulon.algorithms import MARGIN, GradientDescent, Loss
from emulon.algorithms.losses import tukey
from emulon.core.errors import EmulonError
from emulon.interpreter import BadFile, Interpreter, Program, compile, files, load_interpreter, load_program, save

Programs = dict[str, Program]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, programs: Programs) -> tuple[Path, Path]:
    """An interpreter and a program, saved."""
    folder = tmp_path_factory.mktemp("files")
    paths = (folder / "interpreter.safetensors", folder / "program.safetensors")
    save(Interpreter.fitting(programs["logistic_regression"]), paths[0])
    save(programs["logistic_regression"], paths[1])
    return paths


def refused(words: str, call, path: Path, error: type[EmulonError] = BadFile) -> None:
    with pytest.raises(error, match=words) as caught:
        call(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_saved_again_is_the_same_file(name: str, programs: Programs, tmp_path: Path):
    save(programs[name], tmp_path / "a")
    save(load_program(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_figures_of_another_processor_are_rounded_up_before_they_are_proved(programs: Programs, tmp_path: Path):
    program = programs["quantile_regression"]
    last = {name: getattr(program.gradient.proved, name) * (1 - 2.0**-44) for name in ("interpolation", "size")}
    save(
        replace(program, gradient=replace(program.gradient, proved=replace(program.gradient.proved, **last))),
        tmp_path / "a",
    )
    assert load_program(tmp_path / "a").gradient.proved == program.gradient.proved


def test_a_loss_of_ones_own_survives(tmp_path: Path):
    x, y = dataset("label")
    loss = Loss.of("log(1 + exp(-t))", curvature=0.25, link="margin")
    program = compile(GradientDescent(loss, 5), data=(x, y), tolerance=1e-4)
    save(program, tmp_path / "own")
    loaded = load_program(tmp_path / "own")
    assert (loaded.loss.link, loaded.loss.curvature, loaded.loss.derivative) == (MARGIN, 0.25, loss.derivative)
    interpreter = Interpreter.fitting(program)
    assert torch.equal(interpreter.run(loaded, x, y).weights, interpreter.run(program, x, y).weights)


@pytest.mark.parametrize("which", [0, 1])
def test_a_flipped_byte_is_refused_wherever_it_is(which: int, pair: tuple[Path, Path], tmp_path: Path):
    content, load = pair[which].read_bytes(), (load_interpreter, load_program)[which]
    bad = tmp_path / "flipped"
    for at in range(0, len(content), max(1, len(content) // 60)):
        bad.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        refused(str(bad), load, bad)


@pytest.mark.parametrize("which", [0, 1])
def test_a_truncated_file_is_refused(which: int, pair: tuple[Path, Path], tmp_path: Path):
    content, load = pair[which].read_bytes(), (load_interpreter, load_program)[which]
    for size in (0, 4, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "short").write_bytes(content[:size])
        refused("not a whole safetensors file", load, tmp_path / "short")


def test_foreign_files_are_refused(pair: tuple[Path, Path], tmp_path: Path):
    save_file({"weight": torch.zeros(3)}, tmp_path / "foreign")
    refused("not emulon's", load_program, tmp_path / "foreign")
    (tmp_path / "text").write_text("a,b\n1,2\n")
    refused("not a whole safetensors file", load_program, tmp_path / "text")
    refused("there is no file", load_program, tmp_path / "missing")
    refused("holds a program, not an interpreter", load_interpreter, pair[1])
    refused("holds an interpreter, not a program", load_program, pair[0])


def with_header(source: Path, target: Path, **changes: str | None) -> None:
    """The same tensors under an altered header."""
    content = source.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"]["emulon"] = json.dumps(json.loads(header["__metadata__"]["emulon"]) | changes)
    encoded = json.dumps(header).encode()
    target.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + size :])


def test_another_format_is_refused(pair: tuple[Path, Path], tmp_path: Path):
    for number in ("2", "99"):
        with_header(pair[1], tmp_path / "other", format=number)
        refused(f"format {number}, .*write it again: emulon compile", load_program, tmp_path / "other")


def test_altered_facts_are_refused(pair: tuple[Path, Path], tmp_path: Path):
    with safe_open(pair[1], framework="pt") as file:
        facts = json.loads(json.loads(file.metadata()["emulon"])["facts"])
    with_header(pair[1], tmp_path / "altered", facts=json.dumps(facts | {"steps": 1}))
    refused("checksum", load_program, tmp_path / "altered")


def forged(source: Path, target: Path, change: Callable[[dict, dict], Any], kind: str = "program") -> None:
    """The file with something changed in its facts or tensors, and its checksum made anew."""
    tensors, facts = files.read_sealed(source, kind)
    change(facts, tensors)
    header = {"kind": kind, "format": files.FORMAT[kind], "facts": json.dumps(facts, sort_keys=True)}
    header["sha256"] = files._checksum(header, tensors)
    save_file(tensors, target, {"emulon": json.dumps(header, sort_keys=True)})


def set_fact(*path: str, to: Any = None, by: float = 1.0) -> Callable[[dict, dict], None]:
    def change(facts: dict, tensors: dict) -> None:
        place = facts
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = place[path[-1]] * by if to is None else to

    return change


FORGERIES = {
    "values": (lambda facts, tensors: tensors["gradient.values"].mul_(1.1), "is not as near to -1/"),
    "one value": (lambda facts, tensors: tensors["gradient.values"][-1].add_(1e-4), "is not as near to -1/"),
    "a value that is none": (lambda facts, tensors: tensors["gradient.values"].fill_(torch.nan), "numbers are none"),
    "interpolation": (set_fact("gradient", "bounds", "interpolation", to=-1.0), "is not as near to -1/"),
    "deviation": (set_fact("gradient", "bounds", "deviation", by=0.5), "is not as near to -1/"),
    "size": (set_fact("gradient", "bounds", "size", by=0.5), "is not as near to -1/"),
    "a wider domain": (set_fact("gradient", "grid", "hi", by=0.5), "does not cover its residuals"),
    "another domain": (set_fact("domain", "x", by=2.0), "is for another domain"),
    "gap": (set_fact("gradient", "gap", by=1.01), "nearer to each other"),
    "strength": (set_fact("gradient", "strength", by=0.99), "leaks more"),
    "leak": (set_fact("gradient", "bounds", "leak", by=0.5), "leaks more"),
    "no leak": (set_fact("gradient", "bounds", "leak", to=0.0), "leaks more"),
    "codes": (
        lambda facts, tensors: tensors["gradient.codes"][1].copy_(tensors["gradient.codes"][0]),
        "nearer to each",
    ),
    "penalty": (set_fact("l1", to=0.1), "proximal phase do not fit"),
    "steps": (set_fact("steps", to=-1), "numbers are none"),
    "step size": (set_fact("step_size", to=math.nan), "numbers are none"),
    "loss": (set_fact("loss", "derivative", to="t"), "loss is not the one of its name"),
    "link": (set_fact("loss", "link", to="rate"), "loss is not the one of its name"),
    "curvature": (set_fact("loss", "curvature", by=2.0), "loss is not the one of its name"),
    "momentum": (set_fact("momentum", to=0.5), "loss is not quadratic"),
    "strong convexity": (set_fact("strong_convexity", to=0.5), "loss is not quadratic"),
    "a fact more": (set_fact("batch", to=2), "batch is not what is read of it"),
    "a bound that another number stands for": (
        set_fact("domain", "residual", by=1e9),
        "is for another domain|not what is",
    ),
    "a tensor more": (lambda facts, tensors: tensors.update(more=torch.zeros(1)), "holds more, which is not read"),
    "nothing": (lambda facts, tensors: facts.pop("domain"), "is not whole"),
    "other facts": (set_fact("gradient", "bounds", to={}), "is not whole"),
    "a name that is none": (set_fact("name", to=[]), "is not whole"),
    "a number that is none": (set_fact("step_size", to="long"), "is not whole"),
    "half a step": (set_fact("steps", to=2.5), "is not whole"),
    "a proof that is none": (set_fact("gradient", "bounds", "proved", to="yes"), "is not whole"),
    "a missing tensor": (lambda facts, tensors: tensors.pop("gradient.values"), "is not whole"),
    "more values than keys": (
        lambda facts, tensors: tensors.update({"gradient.values": tensors["gradient.values"].repeat(2)}),
        "keys of the gradient phase are not of one kind",
    ),
    "another dtype": (
        lambda facts, tensors: tensors.update({"gradient.codes": tensors["gradient.codes"].float()}),
        "codes of the gradient phase are not of its kind",
    ),
}
FORGED_INTERPRETERS = {
    "no capacity": (lambda facts, tensors: facts.pop("capacity"), "is not whole"),
    "no reach": (lambda facts, tensors: facts["capacity"].update(reach=None), "is not whole"),
    "endless": (set_fact("capacity", "reach", to=1e300), "identity grids end at"),
    "tokens that are none": (set_fact("capacity", "tokens", to="many"), "is not whole"),
    "wide": (set_fact("capacity", "width", to=10**7), "not of the width it says"),
    "no such dtype": (set_fact("dtype", to="torch.float16"), "is not whole"),
    "a missing tensor": (lambda facts, tensors: tensors.pop("values"), "is not whole"),
    "not a number": (lambda facts, tensors: tensors["values"].fill_(torch.nan), "is not that of an interpreter"),
    "far off": (lambda facts, tensors: tensors["intercepts"].mul_(1e300), "is not that of an interpreter"),
    "a fact more": (set_fact("tau", to=1.0), "tau is not what is read of it"),
    "another reach": (set_fact("capacity", "reach", by=0.99), "capacity is not what is read of it"),
    "a tensor more": (lambda facts, tensors: tensors.update(more=torch.zeros(1)), "holds more, which is not read"),
    "another layer": (
        lambda facts, tensors: tensors["assemble.w_q"].mul_(2),
        "assemble.w_q in .* is not that of an interpreter",
    ),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_claim_that_is_not_so_is_refused_though_the_checksum_fits(what: str, pair: tuple[Path, Path], tmp_path: Path):
    change, words = FORGERIES[what]
    forged(pair[1], tmp_path / "program", change)
    refused(words, load_program, tmp_path / "program")


@pytest.mark.parametrize("what", FORGED_INTERPRETERS)
def test_an_interpreter_that_is_none_is_refused_at_once(what: str, pair: tuple[Path, Path], tmp_path: Path):
    change, words = FORGED_INTERPRETERS[what]
    forged(pair[0], tmp_path / "interpreter", change, "interpreter")
    start = time.process_time()
    refused(words, load_interpreter, tmp_path / "interpreter", EmulonError)
    assert time.process_time() - start < 1


def test_a_header_that_is_none_is_refused(pair: tuple[Path, Path], tmp_path: Path):
    with_header(pair[1], tmp_path / "facts", facts=None)
    refused("checksum|not whole", load_program, tmp_path / "facts")
    save_file({"weight": torch.zeros(3)}, tmp_path / "list", {"emulon": "[]"})
    refused("not emulon's", load_program, tmp_path / "list")
    save_file(
        {"weight": torch.zeros(3)},
        tmp_path / "bare",
        {"emulon": json.dumps({"kind": "program", "format": files.FORMAT["program"]})},
    )
    refused("is not whole", load_program, tmp_path / "bare")


def test_a_loss_that_bends_more_than_its_file_says_is_refused(programs: Programs, tmp_path: Path):
    x, y = dataset("value")
    program = compile(GradientDescent(tukey(), 3, step_size=0.1), data=(x, y), tolerance=1e-3)
    save(program, tmp_path / "tukey")
    assert load_program(tmp_path / "tukey").plan.negative_curvature == program.plan.negative_curvature > 0
    forged(tmp_path / "tukey", tmp_path / "convex", set_fact("negative_curvature", to=0.0))
    refused("bends more than it says", load_program, tmp_path / "convex")
    save(programs["any_loss"], tmp_path / "own")
    forged(tmp_path / "own", tmp_path / "flat", set_fact("loss", "curvature", by=0.5))
    refused("steeper than it says", load_program, tmp_path / "flat")


def test_jumps_outside_the_bands_and_bands_where_no_promise_speaks_of_them_are_refused(
    programs: Programs, tmp_path: Path
):
    save(programs["quantile_regression"], tmp_path / "quantile")

    def without_bands(facts: dict, tensors: dict) -> None:
        facts["gradient"]["grid"]["bands"] = facts["gradient"]["bounds"]["bands"] = []

    forged(tmp_path / "quantile", tmp_path / "bare", without_bands)
    refused("its loss jumps where it has no band", load_program, tmp_path / "bare")

    def with_bands(facts: dict, tensors: dict) -> None:
        facts["proximal"]["grid"]["bands"] = [[-0.1, 0.1]]
        facts["proximal"]["bounds"]["bands"] = [{"lo": -0.1, "hi": 0.1}]

    save(programs["lasso"], tmp_path / "lasso")
    forged(tmp_path / "lasso", tmp_path / "banded", with_bands)
    refused("proximal phase has bands, of which no promise speaks", load_program, tmp_path / "banded")


def test_a_proximal_phase_that_is_too_small_is_refused(programs: Programs, tmp_path: Path):
    save(programs["lasso"], tmp_path / "lasso")
    forged(tmp_path / "lasso", tmp_path / "small", set_fact("proximal", "domain", "w", by=0.5))
    refused("proximal phase is for another domain", load_program, tmp_path / "small")
