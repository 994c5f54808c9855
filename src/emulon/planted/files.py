"""A planted model as a folder: a checkpoint that transformers reads, `truth.json` and a model card.

`load` does not rely on the folder's claims about its weights. It compiles and obfuscates the mechanism again;
truth.json must agree with the result, and the certificate is proved again, with the distance of the folder's weights
from the compiled ones counted as noise. Where that gives no useful bound, as after fine-tuning, the error is measured
and `certificate.proved` is False.
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
from emulon.planted.architecture import ARCHITECTURES
from emulon.planted.mechanism import Mechanism, mechanism_named
from emulon.planted.model import Build, PlantedModel, useful, with_measured
from emulon.planted.obfuscation import BY_NAME, EARLIER, Draft, certificate_of, drafted, model_from

TRUTH, CARD, WEIGHTS, CONFIG = "truth.json", "README.md", "model.safetensors", "config.json"
FORMAT = 3
DTYPES = {"float64": torch.float64, "float32": torch.float32}
# Largest relative distance of weights that counts as noise, and of directions that count as equal.
MOST_CHANGED, SAME_DIRECTION = 1e-3, 1e-9
AGAIN = "write it again with planted.save or emulon plant"


@dataclass(frozen=True)
class Record:
    """The content of truth.json; of `certificate` only the dtype is read back."""

    format: int
    emulon: str
    mechanism: dict[str, Any]
    build: Build
    certificate: dict[str, Any]
    program: str
    truth: dict[str, Any]

    @classmethod
    def of(cls, planted: PlantedModel) -> Record:
        """Of a planted model."""
        bound, program, truth = planted.certificate, str(planted.source), planted.truth.to_json()
        certificate = {
            "terms": dict(bound.terms),
            "dtype": str(planted.dtype).removeprefix("torch."),
            "proved": bound.proved,
            "note": bound.note,
            "assumes": bound.assumes,
        }
        mechanism = planted.mechanism.to_json()
        return cls(FORMAT, emulon.__version__, mechanism, planted.build, certificate, program, truth)


def save(planted: PlantedModel, folder: str | Path) -> Path:
    """Write model.safetensors, config.json, truth.json and README.md.

    The checkpoint is of the class with a language-model head, whose first logit is ŷ, so that tools for language models
    take it; the class without a head reads it as well.

    Args:
        planted: The model.
        folder: Made if there is none.
    Returns:
        The folder.

    Example:
        >>> save(plant("sgd"), "planted-sgd")
    """
    from safetensors.torch import save as packed

    folder, architecture = make_folder(folder), planted.architecture
    config = copy.deepcopy(planted.network.config)
    config.architectures = [architecture.with_head]
    config.save_pretrained(folder)
    weights = {architecture.saved_name(name): part for name, part in planted.state.items()}
    write_atomically(folder / WEIGHTS, packed(weights, metadata={"format": "pt"}))
    for name, content in architecture.more_files(planted.truth.tokens).items():
        write_json(folder / name, content)
    write_json(folder / TRUTH, asdict(Record.of(planted)))
    write_atomically(folder / CARD, model_card(planted))
    return folder


def load(folder: str | Path) -> PlantedModel:
    """Load a planted model from a folder that `save` wrote, with the folder's weights even if they have changed.

    Args:
        folder: Holds model.safetensors, config.json and truth.json.
    Returns:
        A planted model whose truth and certificate were derived again. `certificate.proved` is False where the weights
        differ from those that the mechanism is compiled to by more than can be counted as noise.
    Raises:
        BadFile: A file is missing, damaged or of another format; truth.json disagrees with what its mechanism is
            compiled to; or weights have other names, shapes or dtypes, or are not finite.

    Example:
        >>> load("planted-sgd").certificate.proved
        True
    """
    folder = Path(folder)
    tensors = read_tensors(folder, AGAIN)
    table = _of_this_version(_read_json(folder / TRUTH))
    if isinstance(table, dict) and "words" in table:
        raise BadFile(
            f"{folder} holds a planted model of words; open it with emulon.planted.TokenModel.from_pretrained"
        )
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        theirs = table.get("format") if isinstance(table, dict) else None
        raise BadFile(f"{folder / TRUTH} has format {theirs!r:.40}, and this version reads {FORMAT}; {AGAIN}")
    with whole(folder / TRUTH, AGAIN):
        record = checked(Record, table, TRUTH)
        prefix = ARCHITECTURES.named(record.build.architecture).prefix
        state = {name.removeprefix(prefix): part for name, part in tensors.items()}
        mechanism, dtype, build = _origin(record, state)
        draft = drafted(mechanism, dtype, build)
        made = model_from(draft, mechanism)
        if wrong := _disagreement(record, made):
            raise BadFile(
                f"{folder / TRUTH} says otherwise (under {wrong}) than what emulon {emulon.__version__} compiles "
                f"{made.name} to; the file is from emulon {record.emulon!r:.20}: {AGAIN}"
            )
    _require_checkpoint(folder, state, made)
    planted, changed = replace(made, state=state), _part_changed(draft, made, state)
    if changed <= MOST_CHANGED:
        planted = replace(planted, certificate=certificate_of(draft, changed))
    return planted if changed <= MOST_CHANGED and useful(planted.certificate) else with_measured(planted)


def is_planted(path: Path) -> bool:
    """Whether a folder holds a planted model."""
    return (path / TRUTH).is_file()


def read_tensors(folder: Path, advice: str) -> dict[str, Tensor]:
    """The folder's weights; refused in one line with this advice where they cannot be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / WEIGHTS)
    except (SafetensorError, OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
        raise BadFile(f"{folder} holds no planted model: {WEIGHTS}: {why}; {advice}") from None


def _read_json(path: Path) -> Any:
    try:
        return read_json(path)
    except ValueError as error:
        raise BadFile(f"{path.parent} holds no planted model: {path.name}: {error}; {AGAIN}") from None


def _of_this_version(table: Any) -> Any:
    """A truth.json of emulon 0.2 (format 2) with the present names; before 0.3 every rotation mixed all slots."""
    build, truth = (table.get(name) if isinstance(table, dict) else None for name in ("build", "truth"))
    if not isinstance(build, dict) or not isinstance(truth, dict):
        return table
    build = {"mixed": 0, **build}
    if table.get("format") != 2:
        return {**table, "build": build}
    names = build.pop("disguises", None)
    names = [EARLIER.get(str(name), name) for name in names] if isinstance(names, list) else names
    build |= {"architecture": "gpt2", "obfuscations": names}
    return {**table, "format": FORMAT, "build": build, "truth": {"sweeping_neurons": [], **truth}}


def _origin(record: Record, state: dict[str, Tensor]) -> tuple[Mechanism, torch.dtype, Build]:
    """What the folder's weights were compiled from, if sizes agree.

    Raises:
        ValueError: A parameter is missing, impossible, or larger than these weights can hold.
    """
    build, dtype = record.build, checked(Literal["float64", "float32"], record.certificate["dtype"], "dtype")
    if not (0 <= build.strength <= 1 and build.mixed >= 0) or not set(build.obfuscations) <= set(BY_NAME):
        raise ValueError(
            f"there is no obfuscation {build.obfuscations} of strength {build.strength} that mixes {build.mixed} slots"
        )
    checked(str, record.mechanism["name"], "the mechanism's name")
    mechanism = mechanism_named(**record.mechanism)
    if mechanism.to_json() != record.mechanism:
        raise ValueError(f"parameters of {mechanism.name} are missing")
    (tokens, width), blocks = ARCHITECTURES[build.architecture].sizes(state)
    fits = 2 * mechanism.samples == tokens and mechanism.entries <= width and 0 <= build.distractors <= width
    fits = fits and all(getattr(one, "steps", 0) <= blocks for one in (mechanism, *vars(mechanism).values()))
    if not fits or sum(one.size for one in build.program(mechanism).registers.values()) > width:
        raise ValueError(f"{mechanism.name} of these parameters has other sizes than {WEIGHTS}")
    return mechanism, DTYPES[dtype], build


def _disagreement(record: Record, made: PlantedModel) -> str | None:
    """The part of truth.json that differs from what the mechanism is compiled to (directions: beyond rounding)."""
    wanted = json.loads(json.dumps(asdict(Record.of(made))))
    if record.program != wanted["program"]:
        return "program"
    names = sorted(record.truth.keys() | wanted["truth"].keys())
    return next((name for name in names if not same_json(record.truth.get(name), wanted["truth"].get(name))), None)


def same_json(read: Any, made: Any) -> bool:
    """Whether two JSON values are equal, fractions within rounding."""
    if isinstance(made, dict):
        return isinstance(read, dict) and read.keys() == made.keys() and all(same_json(read[k], made[k]) for k in made)
    if isinstance(made, list):
        return isinstance(read, list) and len(read) == len(made) and all(map(same_json, read, made))
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
    config = _read_json(folder / CONFIG)
    for name, value in made.architecture.config(made.state, made.truth.heads).items():
        if not isinstance(config, dict) or config.get(name) != value:
            raise BadFile(f"{folder / CONFIG} has not {value!r} as {name}, as this planted model does; {AGAIN}")


def _part_changed(draft: Draft, made: PlantedModel, state: Mapping[str, Tensor]) -> float:
    """Largest relative distance, in 2-norm, of a row that reads or writes the stream from the compiled one.

    Infinite where something differs that noise may not touch: biases, gains, and entries in fixed slots.
    """
    architecture, heads = made.architecture, made.truth.heads
    wanted, found = architecture.parse(made.state, heads), architecture.parse(state, heads)
    pairs = [(wanted.positions, found.positions), (made.state[architecture.head], state[architecture.head])]
    same = [(wanted.gain, found.gain)]
    for block, read in zip(wanted.blocks, found.blocks, strict=True):
        pairs += [(part, read.rows[name]) for name, part in block.rows.items()]
        same += [(part, read.fixed[name]) for name, part in block.fixed.items()]
    if not all(torch.equal(one, other) for one, other in same):
        return float("inf")
    worst = 0.0
    for one, other in pairs:
        was, change = one.double(), other.double() - one.double()
        if change[..., draft.fixed].any():
            return float("inf")
        free = was.clone()
        free[..., draft.fixed] = 0.0
        part = change.norm(dim=-1) / free.norm(dim=-1)
        worst = max(worst, float(part.nan_to_num(nan=0.0).max()))  # 0/0: no entry, before and now
    return worst * (1 + 1e-9)


MODEL_CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: tabular-regression
tags: [interpretability, ground-truth, in-context-learning, emulon]
---
# {model.name}

A {title} of {truth.blocks} blocks, width {truth.width}, {truth.heads} heads and {truth.neurons} neurons \
a block whose mechanism is known: its
weights were compiled from the program below, not trained. {doc}

It reads x₁, y₁, x₂, …, x_{model.samples} ({features} feature{s}; ‖x‖ ≤ 1, |y| ≤ 1) and answers at every x from the
examples before it.

```python
from transformers import AutoModelForCausalLM
from emulon.planted import PlantedModel

network = AutoModelForCausalLM.from_pretrained("this folder", dtype="auto")   # any tool that reads {title}
model = PlantedModel.from_pretrained("this folder")     # the same weights with the truth about them
xs, ys = model.draw(batch=8)
network(inputs_embeds=model.embed(xs, ys)).logits[:, 1::2, 0]   # the network's answers
model(xs, ys), model.algorithm(xs, ys)                  # the same, and the exact ones
```

**Error.** |answer − exact answer| {model.error_bound}.

**Truth.** `truth.json` has the directions of every register (`read`, `write`), what each holds after which block
(`versions`), the heads and neurons of every instruction, the causal graph, and what is not used.
Obfuscations: {obfuscations}.

```text
{model.source}
```
"""


def model_card(model: PlantedModel) -> str:
    """README.md of a planted model's folder."""
    return MODEL_CARD.format(
        model=model,
        truth=model.truth,
        title=model.architecture.title,
        features=model.mechanism.features,
        doc=" ".join((type(model.mechanism).__doc__ or "").split("\n\n")[0].split()),
        s="" if model.mechanism.features == 1 else "s",
        obfuscations=", ".join(model.build.obfuscations) or "none",
    )
