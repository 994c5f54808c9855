"""A planted model as a folder: a checkpoint that `GPT2Model.from_pretrained` reads, `truth.json` and a model card.

Nothing that the folder says of its weights is believed. `load` compiles and obfuscates the mechanism again. truth.json
must agree with the result, and the certificate is the one proved of it, in which the distance of the folder's weights
from the compiled ones counts as noise. Where that proves nothing useful, as after fine-tuning, the error is measured,
and `proved` is False.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import emulon
from emulon.core.files import checked, make_folder, read_json, write_atomically, write_json
from emulon.interpreter.files import BadFile, whole
from emulon.machine.targets.gpt2 import config_of
from emulon.planted.card import model_card
from emulon.planted.draft import kept_apart
from emulon.planted.mechanism import Mechanism, mechanism_named
from emulon.planted.model import Build, PlantedModel, useful, with_measured
from emulon.planted.obfuscation import EARLIER, EVERY, certificate_of, drafted, model_from

TRUTH, CARD, WEIGHTS, CONFIG = "truth.json", "README.md", "model.safetensors", "config.json"
FORMAT = 3
PREFIX = "transformer."  # of everything in a GPT2LMHeadModel but its read-out
DTYPES = {"float64": torch.float64, "float32": torch.float32}
# Weights that differ by a larger part of themselves are not noise, and directions by more are not the same.
MOST_CHANGED, SAME_DIRECTION = 1e-3, 1e-9
AGAIN = "write it again with planted.save or emulon plant"


@dataclass(frozen=True)
class Record:
    """The whole of truth.json. Of `certificate` only the dtype is read: the rest is for people."""

    format: int
    emulon: str
    mechanism: dict[str, Any]
    build: Build
    certificate: dict[str, Any]
    program: str
    truth: dict[str, Any]

    @classmethod
    def of(cls, planted: PlantedModel) -> Record:
        promise = planted.certificate
        certificate = {
            "terms": dict(promise.terms),
            "dtype": str(planted.dtype).removeprefix("torch."),
            "proved": promise.proved,
            "note": promise.note,
            "assumes": promise.assumes,
        }
        mechanism = _table_of(planted.mechanism)
        program, truth = str(planted.source), planted.truth.to_json()
        return cls(FORMAT, emulon.__version__, mechanism, planted.build, certificate, program, truth)


def save(planted: PlantedModel, folder: str | Path) -> Path:
    """model.safetensors, config.json, truth.json and README.md.

    The checkpoint is a `GPT2LMHeadModel` with a vocabulary of one, whose logit is ŷ, so that whatever takes language
    models takes it; `GPT2Model.from_pretrained` reads it as well.
    """
    from safetensors.torch import save as packed

    folder = make_folder(folder)
    config = copy.deepcopy(planted.gpt2.config)
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(folder)
    weights = {f"{PREFIX}{name}": part for name, part in planted.state.items()}
    write_atomically(folder / WEIGHTS, packed(weights, metadata={"format": "pt"}))
    write_json(folder / TRUTH, asdict(Record.of(planted)))
    write_atomically(folder / CARD, model_card(planted))
    return folder


def load(folder: str | Path) -> PlantedModel:
    """The planted model in a folder that `save` wrote, with the folder's weights, whatever happened to them since.

    Args:
        folder: Holds model.safetensors, config.json and truth.json.
    Returns:
        A planted model whose truth and certificate were derived again. `certificate.proved` is False where the weights
        differ from those that the mechanism is compiled to by more than can be counted as noise.
    Raises:
        BadFile: A file is missing, damaged or of another format; truth.json says otherwise than what its mechanism is
            compiled to; or weights have other names, shapes or dtypes, or are not finite.
    """
    folder = Path(folder)
    state = _weights(folder)
    table = _table(folder, TRUTH)
    table = _of_this_version(table)
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        theirs = table.get("format") if isinstance(table, dict) else None
        raise BadFile(f"{folder / TRUTH} has format {theirs!r:.40}, and this version reads {FORMAT}; {AGAIN}")
    with whole(folder / TRUTH, AGAIN):
        record = checked(Record, table, TRUTH)
        mechanism, dtype, build = _origin(record, state)
        draft = drafted(mechanism, dtype, build)
        made = model_from(draft, mechanism)
        if wrong := _false_words(record, made):
            raise BadFile(
                f"{folder / TRUTH} says otherwise (under {wrong}) than what emulon {emulon.__version__} compiles "
                f"{made.name} to; the file is from emulon {record.emulon!r:.20}: {AGAIN}"
            )
    _require_checkpoint(folder, state, made)
    planted, changed = replace(made, state=state), _part_changed(made.state, state, kept_apart(draft.machine))
    if changed <= MOST_CHANGED:
        planted = replace(planted, certificate=certificate_of(draft, changed))
    return planted if changed <= MOST_CHANGED and useful(planted.certificate) else with_measured(planted)


def is_planted(path: Path) -> bool:
    return (path / TRUTH).is_file()


def _table_of(mechanism: Mechanism) -> dict[str, Any]:
    return {"name": mechanism.name, **mechanism.parameters}


def _weights(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        read = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
        raise BadFile(f"{folder} holds no planted model: {WEIGHTS}: {why}; {AGAIN}") from None
    state = {name.removeprefix(PREFIX): part for name, part in read.items()}
    if len(state) != len(read):
        raise BadFile(f"{folder / WEIGHTS} has tensors twice, with and without {PREFIX!r} before their names; {AGAIN}")
    return state


def _table(folder: Path, name: str) -> Any:
    try:
        return read_json(folder / name)
    except ValueError as error:
        raise BadFile(f"{folder} holds no planted model: {name}: {error}; {AGAIN}") from None


def _of_this_version(table: Any) -> Any:
    """A truth.json of emulon 0.2 (format 2) with the names of today."""
    if not isinstance(table, dict) or table.get("format") != 2 or not isinstance(table.get("build"), dict):
        return table
    build = dict(table["build"])
    names = build.pop("disguises", ())
    build["obfuscations"] = [EARLIER.get(name, name) for name in names] if isinstance(names, list) else names
    return {**table, "format": FORMAT, "build": build}


def _origin(record: Record, state: dict[str, Tensor]) -> tuple[Mechanism, torch.dtype, Build]:
    """What the folder's weights were compiled from, of no other size than they are.

    Raises:
        ValueError: A parameter is missing or makes no sense, or is a number of things that these weights cannot hold.
    """
    build, dtype = record.build, checked(Literal["float64", "float32"], record.certificate["dtype"], "dtype")
    if not 0 <= build.strength <= 1 or not set(build.obfuscations) <= set(EVERY):
        raise ValueError(f"there is no obfuscation {build.obfuscations} of strength {build.strength}")
    checked(str, record.mechanism["name"], "the mechanism's name")
    mechanism = mechanism_named(**record.mechanism)
    if _table_of(mechanism) != record.mechanism:
        raise ValueError(f"parameters of {mechanism.name} are missing")
    (tokens, width), blocks = state["wpe.weight"].shape, sum(name.endswith("c_fc.weight") for name in state)
    fits = 2 * mechanism.samples == tokens and mechanism.entries <= width and 0 <= build.distractors <= width
    fits = fits and all(getattr(one, "steps", 0) <= blocks for one in (mechanism, *vars(mechanism).values()))
    if not fits or sum(one.size for one in build.program(mechanism).registers.values()) > width:
        raise ValueError(f"{mechanism.name} of these parameters has other sizes than {WEIGHTS}")
    return mechanism, DTYPES[dtype], build


def _false_words(record: Record, made: PlantedModel) -> str | None:
    """The part of truth.json that is not what the mechanism is compiled to; directions within rounding."""
    wanted = json.loads(json.dumps(asdict(Record.of(made))))
    if record.program != wanted["program"]:
        return "program"
    names = sorted(record.truth.keys() | wanted["truth"].keys())
    return next((name for name in names if not _same(record.truth.get(name), wanted["truth"].get(name))), None)


def _same(read: Any, made: Any) -> bool:
    """Whether two JSON values are one, numbers with a fraction within rounding."""
    if isinstance(made, dict):
        return isinstance(read, dict) and read.keys() == made.keys() and all(_same(read[k], made[k]) for k in made)
    if isinstance(made, list):
        return isinstance(read, list) and len(read) == len(made) and all(map(_same, read, made))
    if isinstance(made, float):
        return isinstance(read, float) and abs(read - made) <= SAME_DIRECTION * max(1.0, abs(made))
    return type(read) is type(made) and bool(read == made)


def _require_checkpoint(folder: Path, state: dict[str, Tensor], made: PlantedModel) -> None:
    """Refuse weights of other names, shapes or dtypes, or not finite, and a config.json of another model."""
    for name in sorted(state.keys() ^ made.state.keys()):
        raise BadFile(f"{folder / WEIGHTS} {'has' if name in state else 'lacks'} a tensor {name!r:.60}; {AGAIN}")
    for name, wanted in made.state.items():
        part = state[name]
        if part.shape != wanted.shape or part.dtype != wanted.dtype or not bool(torch.isfinite(part).all()):
            raise BadFile(
                f"{name} in {folder / WEIGHTS} is {tuple(part.shape)}, {part.dtype}; wanted {tuple(wanted.shape)}, "
                f"{wanted.dtype} and finite; {AGAIN}"
            )
    config = _table(folder, CONFIG)
    for name, value in config_of(made.state, made.truth.heads).items():
        if not isinstance(config, dict) or config.get(name) != value:
            raise BadFile(f"{folder / CONFIG} has not {value!r} as {name}, as this planted model does; {AGAIN}")


def _part_changed(made: Mapping[str, Tensor], state: Mapping[str, Tensor], apart: list[int]) -> float:
    """The part of its 2-norm by which a functional or a written vector differs from the compiled one, at most.

    Infinite where something differs that noise may not touch: biases, gains, what reads or writes the slots `apart`.
    """
    worst = 0.0
    for name, wanted in made.items():
        was, off = wanted.double(), state[name].double() - wanted.double()
        if not off.any():
            continue
        if name.endswith(("c_proj.weight", "wpe.weight", "wte.weight")):  # these write the stream, or its read-out
            was, off = was.mT, off.mT
        elif not name.endswith(("c_attn.weight", "c_fc.weight")):
            return float("inf")
        if off[apart].any():
            return float("inf")
        others = torch.ones(len(was), dtype=torch.bool, device=was.device)
        others[apart] = False
        part = off.norm(dim=0) / was[others].norm(dim=0)
        worst = max(worst, float(part.nan_to_num(nan=0.0).max()))  # 0/0: nothing is there, and nothing was
    return worst * (1 + 1e-9)
