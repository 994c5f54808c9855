"""Splits that others are scored on: a sealed one keeps its truth back, and files of answers are checked.

truth = seal("split", models=20)                     # models and questions; split-truth.json is kept back
entry = answered("linear-probe", "split")            # what a submitter hands in, plain JSON
scored(entry, read_truth(truth))                     # once the truth is out: refused unless its hash was committed
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from emulon.core import Progress, silent
from emulon.core.errors import BadShape, EmulonError
from emulon.core.files import checked, make_folder, provenance, read_json, write_atomically, write_json
from emulon.planted import sample
from emulon.planted.architecture import ARCHITECTURES
from emulon.planted.benchmark.questions import NOISE, Choice, Key, ask
from emulon.planted.benchmark.scoring import Given, given, grade
from emulon.planted.benchmark.study import ALL, PLAIN, Row, answered_by, questions_about, summary, variant_of
from emulon.planted.benchmark.subject import Embedding, NoisyAnswers, Subject
from emulon.planted.files import CONFIG, WEIGHTS
from emulon.planted.mechanism import BoundedLinear

FORMAT = 1
COMMITMENT, QUESTIONS, TENSORS = "commitment.json", "questions.json", "questions.safetensors"
# Tensors of a subject that are written by their names there.
SHOWN = ("prompts", "others", "readout", "swapped")
# Plain and obfuscated models take turns in a sealed split.
SEALED = (PLAIN, ALL)


class BadEntry(EmulonError):
    """A file of the leaderboard that is damaged, was altered, or belongs to another split.

    Cure: the message says which; answer again with `emulon benchmark METHOD --split …`.
    """


@dataclass(frozen=True)
class Split:
    """Which models were asked about; in the public split each in every variant, from the first model's seed on."""

    name: Literal["public", "sealed"]
    architecture: str
    models: int
    seed: int | None  # public
    variants: tuple[str, ...]  # public: by name; the truth of a sealed split has them
    truth: str | None  # sealed: its SHA-256


@dataclass(frozen=True)
class Entry:
    """One method's answers to one split, as JSON; `docs/benchmark.md` describes the fields."""

    format: int
    method: str
    split: Split
    answers: dict[str, Given]
    digest: str
    cells: tuple[dict[str, Any], ...]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class SealedModel:
    """The truth about one model of a sealed split."""

    seed: int
    mechanism: str
    variant: str
    key: Key


@dataclass(frozen=True)
class Truth:
    """The truth of a sealed split, by model; `nonce` keeps the hash from being guessed."""

    format: int
    nonce: str
    models: dict[str, SealedModel]


@dataclass(frozen=True)
class Commitment:
    """What is published with a sealed split: the hash of its truth, and of every model's files."""

    format: int
    truth: str
    architecture: str
    models: dict[str, str]


def seal(
    folder: str | Path,
    models: int,
    *,
    architecture: str = "gpt2",
    secret: Sequence[int] = (),
    progress: Progress = silent,
) -> Path:
    """Make a sealed split: models, questions and a commitment in a folder to publish, and the truth beside it.

    `secret` is a seed per model, by default from the operating system. Returns the file with the truth,
    `FOLDER-truth.json`, to be kept back until answers are in.
    """
    folder = make_folder(folder)
    truth, digests = Truth(FORMAT, secrets.token_hex(16), {}), {}
    for index, seed in enumerate(secret or [secrets.randbits(60) for _ in range(models)]):
        name, variant = f"{index:03}", SEALED[index % len(SEALED)]
        planted = sample(seed, architecture=architecture)
        questions = ask(variant_of(planted, variant, seed), seed)
        _write(folder / name, questions.subject, questions.asked)
        truth.models[name] = SealedModel(seed, str(planted.mechanism), variant, questions.key)
        digests[name] = _digest_of(folder / name)
        progress(f"model {name}", (index + 1) / models)
    path = folder.with_name(f"{folder.name}-truth.json")
    write_json(path, asdict(truth))
    write_json(folder / COMMITMENT, asdict(Commitment(FORMAT, _sha256(path.read_bytes()), architecture, digests)))
    return path


def answered(method: str, split: str | Path | Split, progress: Progress = silent) -> Entry:
    """A method's answers to a public split, with scores, or to the folder of a sealed one.

    Raises:
        BadEntry: The folder is damaged or no split.
        NotInstalled: The method's library is not installed.
    """
    asked: Iterator[tuple[str, Subject, tuple[Choice, ...], SealedModel | None]]
    if isinstance(split, Split):
        asked, count = _public(split), split.models * len(split.variants)
    else:
        commitment = _read(Commitment, Path(split) / COMMITMENT)
        asked, count = _sealed(Path(split), commitment), len(commitment.models)
        split = Split("sealed", commitment.architecture, count, None, (), commitment.truth)
    answers, rows = {}, []
    for number, (name, subject, choices, graded) in enumerate(asked):
        answers[name] = given(answered_by(method, subject, f"model {name}"), subject, choices)
        if graded is not None:
            rows.append(_row(method, graded, answers[name]))
        progress(f"model {name}", (number + 1) / count)
    told = {"method": method, "split": asdict(split), "answers": {name: asdict(one) for name, one in answers.items()}}
    return Entry(FORMAT, method, split, answers, _digest(told), _cells(rows), provenance())


def read_entry(path: str | Path) -> Entry:
    """A file of answers, whose digest is checked; raises BadEntry where it is damaged or was altered."""
    entry: Entry = _read(Entry, Path(path))
    told = {key: read_json(path)[key] for key in ("method", "split", "answers")}
    if _digest(told) != entry.digest:
        raise BadEntry(f"{path} was altered: its method, split and answers have another digest than it says")
    return entry


def read_truth(path: str | Path) -> tuple[str, Truth]:
    """The hash of the file that `seal` wrote beside a split, and what is in it; raises BadEntry where it is damaged."""
    return _sha256(Path(path).read_bytes()) if Path(path).is_file() else "", _read(Truth, Path(path))


def scored(entry: Entry, revealed: tuple[str, Truth] | None = None) -> Entry:
    """Score recorded answers again; `revealed` is from `read_truth`, and public models are made again.

    Raises:
        BadEntry: The truth is not the one that was committed to, an answer is missing, or recorded scores differ.
    """
    if entry.split.name == "public":
        graded = {name: one for name, _, _, one in _public(entry.split)}
    elif revealed is None:
        raise BadEntry("the split is sealed: give its truth once it is out, with --truth")
    else:
        if revealed[0] != entry.split.truth:
            raise BadEntry(
                f"the truth has the hash {revealed[0][:12]}…, and {str(entry.split.truth)[:12]}… was committed to"
            )
        graded = revealed[1].models
    if set(graded) != set(entry.answers):
        raise BadEntry(f"answers are about {len(entry.answers)} models, and the split has {len(graded)} others or more")
    try:
        cells = _cells([_row(entry.method, one, entry.answers[name]) for name, one in graded.items()])
    except BadShape as error:
        raise BadEntry(f"{error}; the answers belong to another split") from None
    if entry.cells and not _same(cells, entry.cells):
        raise BadEntry("the recorded scores are not those of the recorded answers")
    return replace(entry, cells=cells)


def _public(split: Split) -> Iterator[tuple[str, Subject, tuple[Choice, ...], SealedModel]]:
    assert split.seed is not None
    for seed in range(split.seed, split.seed + split.models):
        for variant, mechanism, questions in questions_about(seed, split.variants, split.architecture):
            graded = SealedModel(seed, mechanism, variant, questions.key)
            yield f"{seed} {variant}", questions.subject, questions.asked, graded


def _sealed(folder: Path, commitment: Commitment) -> Iterator[tuple[str, Subject, tuple[Choice, ...], None]]:
    for name, digest in commitment.models.items():
        if not (folder / name).is_dir() or _digest_of(folder / name) != digest:
            raise BadEntry(f"{folder / name} is not what {COMMITMENT} says; get the split again")
        yield name, *opened(folder / name), None


def _row(method: str, model: SealedModel, answers: Given) -> Row:
    return Row(model.seed, model.mechanism, model.variant, method, grade(answers, model.key))


def _cells(rows: Sequence[Row]) -> tuple[dict[str, Any], ...]:
    """Means over models with intervals; changes against plain only where the same model was asked about in both."""
    return tuple({key: value for key, value in asdict(cell).items() if key != "method"} for cell in summary(rows))


def _same(cells: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether scores agree; up to rounding, as bounds of intervals are quantiles of random sums."""
    if len(cells) != len(others):
        return False
    pairs = [(mine, theirs, theirs.get("score", {})) for mine, theirs in zip(cells, others, strict=True)]
    return all(
        all(mine[name] == theirs.get(name) for name in ("measure", "variant", "models"))
        and all(abs(value - scores.get(key, math.inf)) < 1e-9 for key, value in mine["score"].items())
        for mine, theirs, scores in pairs
    )


def _write(folder: Path, subject: Subject, choices: tuple[Choice, ...]) -> None:
    """What a method may see of one model."""
    from safetensors.torch import save

    make_folder(folder)
    subject.model.config.save_pretrained(folder)
    weights = {name: part.contiguous() for name, part in subject.model.state_dict().items()}
    write_atomically(folder / WEIGHTS, save(weights, metadata={"format": "pt"}))
    tensors = {name: getattr(subject, name) for name in SHOWN} | vars(subject.predictor.embedding)
    tensors |= {f"quantity {index}": one for index, one in enumerate(subject.quantities)}
    write_atomically(folder / TENSORS, save({name: part.contiguous() for name, part in tensors.items()}))
    write_json(folder / QUESTIONS, {"candidates": subject.candidates, "choices": choices})


def opened(folder: Path) -> tuple[Subject, tuple[Choice, ...]]:
    from safetensors.torch import load

    tensors, weights = (load((folder / name).read_bytes()) for name in (TENSORS, WEIGHTS))
    told, config = read_json(folder / QUESTIONS), read_json(folder / CONFIG)
    heads = config.get("num_attention_heads") or config["n_head"]
    model = ARCHITECTURES.named(config["model_type"]).load(weights, heads)
    embedding, number = Embedding(*(tensors[name] for name in ("start", "x", "y"))), int(folder.name)
    subject = Subject(
        model,
        quantities=tuple(tensors[f"quantity {i}"] for i in range(sum(name.startswith("quantity") for name in tensors))),
        predictor=NoisyAnswers(model, embedding, tensors["readout"], NOISE, number),
        task=BoundedLinear(len(embedding.x), len(embedding.start) // 2),
        candidates=tuple(told["candidates"]),
        seed=number,
        **{name: tensors[name] for name in SHOWN},
    )
    return subject, checked(tuple[Choice, ...], told["choices"], QUESTIONS)


def _read(kind: Any, path: Path) -> Any:
    try:
        return checked(kind, read_json(path), path.name)
    except ValueError as error:
        raise BadEntry(f"{path} cannot be read: {error}") from None


def _digest(told: Mapping[str, Any]) -> str:
    return _sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode())


def _digest_of(folder: Path) -> str:
    """Of the names and contents of a folder's files."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return _sha256("".join(f"{path.name} {_sha256(path.read_bytes())}\n" for path in files).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
