"""A specimen as a folder: a checkpoint that `GPT2Model.from_pretrained` reads, `truth.json` and a model card."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch

from emulon.certify import Certificate
from emulon.errors import EmulonError
from emulon.files import make_folder, write_atomically, write_json
from emulon.specimens.card import model_card
from emulon.specimens.mechanism import mechanism_named
from emulon.specimens.specimen import Build, Specimen
from emulon.specimens.truth import Truth

TRUTH, CARD, WEIGHTS = "truth.json", "README.md", "model.safetensors"
FORMAT = 1
PREFIX = "transformer."  # of everything in a GPT2LMHeadModel but its read-out


def save(specimen: Specimen, folder: str | Path) -> Path:
    """model.safetensors, config.json, truth.json and README.md.

    The checkpoint is a `GPT2LMHeadModel` with a vocabulary of one, whose logit is ŷ, so that whatever takes language
    models takes it; `GPT2Model.from_pretrained` reads it as well.
    """
    from safetensors.torch import save as packed

    folder = make_folder(folder)
    config = copy.deepcopy(specimen.model.config)
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(folder)
    weights = {f"{PREFIX}{name}": part for name, part in specimen.state.items()}
    write_atomically(folder / WEIGHTS, packed(weights, metadata={"format": "pt"}))
    write_json(folder / TRUTH, to_json(specimen))
    write_atomically(folder / CARD, model_card(specimen))
    return folder


def load(folder: str | Path) -> Specimen:
    """What `save` wrote; its weights are those of the checkpoint, whatever happened to them since."""
    from safetensors.torch import load_file

    folder = Path(folder)
    try:
        table = json.loads((folder / TRUTH).read_text(encoding="utf-8"))
        state = {name.removeprefix(PREFIX): part for name, part in load_file(folder / WEIGHTS).items()}
    except (OSError, json.JSONDecodeError) as error:
        raise EmulonError(f"{folder} holds no specimen: {error}; write one with specimens.save") from error
    if table.get("format") != FORMAT:
        raise EmulonError(f"{folder / TRUTH} has format {table.get('format')}, and this version reads {FORMAT}")
    made = {**table["build"], "disguises": tuple(table["build"]["disguises"])}
    promise = {**table["certificate"], "dtype": getattr(torch, table["certificate"]["dtype"])}
    promise["assumes"] = tuple(promise["assumes"])
    return Specimen(
        mechanism_named(**table["mechanism"]),
        Truth.from_json(table["truth"]),
        state,
        Certificate(**promise),
        Build(**made),
    )


def is_specimen(path: Path) -> bool:
    return (path / TRUTH).is_file()


def to_json(specimen: Specimen) -> dict[str, Any]:
    """The whole of truth.json."""
    promise = specimen.certificate
    return {
        "format": FORMAT,
        "mechanism": {"name": specimen.mechanism.name, **specimen.mechanism.parameters},
        "build": {
            "distractors": specimen.build.distractors,
            "seed": specimen.build.seed,
            "disguises": specimen.build.disguises,
        },
        "certificate": {
            "terms": dict(promise.terms),
            "dtype": str(promise.dtype).removeprefix("torch."),
            "proved": promise.proved,
            "note": promise.note,
            "assumes": promise.assumes,
        },
        "program": str(specimen.source),
        "truth": specimen.truth.to_json(),
    }
