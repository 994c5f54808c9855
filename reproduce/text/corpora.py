"""A corpus: texts as numbers of words, in one safetensors file that torch alone can read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from emulon.core.errors import unknown
from emulon.core.files import make_folder, write_atomically, write_json
from reproduce.text.tokeniser import BadText, Tokeniser

Kind = Literal["translation", "classification"]
SPLITS = ("train", "validation", "test")
# The format of the files, and what a run's folder keeps of a corpus.
FORMAT, TOKENISER, CLASSES = "emulon corpus 1", "tokeniser.json", "classes.json"


@dataclass(frozen=True)
class Texts:
    """Texts one after the other: text i is words[starts[i] : starts[i + 1]]."""

    words: Int[Tensor, " words"]
    starts: Int[Tensor, " texts_and_one"]

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> Texts:
        lengths = torch.tensor([0, *map(len, texts)], device="cpu")
        # 16 bits are enough for the vocabularies at hand, and halve the files
        return cls(
            torch.tensor([word for text in texts for word in text], dtype=torch.int16, device="cpu"), lengths.cumsum(0)
        )

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, place: int) -> list[int]:
        found: list[int] = self.words[self.starts[place] : self.starts[place + 1]].tolist()
        return found

    @property
    def lengths(self) -> Int[Tensor, " texts"]:
        return self.starts.diff()

    def padded(self, rows: Int[Tensor, " rows"], length: int, fill: int) -> Int[Tensor, "rows length"]:
        """These texts, each cut or filled up to `length` words."""
        places = self.starts[rows].unsqueeze(-1) + torch.arange(length, device="cpu")
        inside = places < self.starts[rows + 1].unsqueeze(-1)
        words = self.words[places.clamp(max=max(len(self.words) - 1, 0))].long()
        return torch.where(inside, words, fill)


@dataclass(frozen=True)
class Split:
    """Texts and what is asked of them: other texts, or classes. `references` are the answers as people wrote them."""

    texts: Texts
    answers: Texts | None = None
    classes: Int[Tensor, " texts"] | None = None
    references: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Splits of one kind, the tokeniser that was trained on the first of them, and the names of the classes."""

    kind: Kind
    tokeniser: Tokeniser
    classes: tuple[str, ...] = ()
    splits: dict[str, Split] = field(default_factory=dict)

    def split(self, name: str) -> Split:
        if name not in self.splits:
            raise BadText(f"this corpus has no {name} split; make one that has (docs/tutorials/texts.md)")
        return self.splits[name]

    def save(self, path: Path | str) -> None:
        tensors: dict[str, Tensor] = {}
        for name, split in self.splits.items():
            tensors |= {f"{name}/words": split.texts.words, f"{name}/starts": split.texts.starts}
            if split.answers is not None:
                tensors |= {f"{name}/answers": split.answers.words, f"{name}/answer_starts": split.answers.starts}
            if split.classes is not None:
                tensors[f"{name}/classes"] = split.classes
        references = {name: split.references for name, split in self.splits.items() if split.references}
        notes = {
            "format": FORMAT,
            "kind": self.kind,
            "classes": json.dumps(self.classes, ensure_ascii=False),
            "references": json.dumps(references, ensure_ascii=False),
            "tokeniser": self.tokeniser.text,
        }
        make_folder(Path(path).parent)
        write_atomically(path, save(tensors, notes))

    def save_data(self, folder: Path) -> None:
        """What a run needs of it later on, without the texts."""
        write_atomically(folder / TOKENISER, self.tokeniser.text)
        if self.classes:
            write_json(folder / CLASSES, self.classes)


def load_corpus(path: Path | str, kind: Kind) -> Corpus:
    """A corpus' file, or what a run's folder keeps of one. Read once as long as it does not change."""
    path = Path(path)
    if path.is_dir() and (path / TOKENISER).is_file():
        return _kept(path, kind)
    if not path.is_file():
        raise BadText(
            f"there is no corpus {str(path)!r}; make one (docs/tutorials/texts.md), and name it behind the"
            f" task: {kind}:data=FILE"
        )
    corpus = _read(path, path.stat().st_mtime_ns)
    if corpus.kind != kind:
        raise BadText(f"{path} is a corpus for {corpus.kind}, not for {kind}")
    return corpus


def _kept(folder: Path, kind: Kind) -> Corpus:
    try:
        classes = json.loads((folder / CLASSES).read_text()) if kind == "classification" else []
        return Corpus(kind, Tokeniser((folder / TOKENISER).read_text()), tuple(classes))
    except (OSError, ValueError) as error:
        raise BadText(f"{folder} keeps no whole corpus of a run on {kind}: {error}; train the run again") from error


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> Corpus:
    try:
        with safe_open(path, "pt") as opened:
            notes = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no mapping)
        if notes.get("format") != FORMAT:
            raise ValueError(f"it is not of the format {FORMAT!r}")
        references = json.loads(notes["references"])
        splits = {name: _split(name, tensors, references) for name in SPLITS if f"{name}/words" in tensors}
        kind: Kind = "translation" if notes["kind"] == "translation" else "classification"
        return Corpus(kind, Tokeniser(notes["tokeniser"]), tuple(json.loads(notes["classes"])), splits)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise BadText(
            f"{path} is no corpus that can be read ({error}); make it again (docs/tutorials/texts.md)"
        ) from error


def _split(name: str, tensors: dict[str, Tensor], references: dict[str, list[str]]) -> Split:
    def texts(words: str, starts: str) -> Texts:
        return Texts(tensors[f"{name}/{words}"], tensors[f"{name}/{starts}"])

    answers = texts("answers", "answer_starts") if f"{name}/answers" in tensors else None
    return Split(texts("words", "starts"), answers, tensors.get(f"{name}/classes"), tuple(references.get(name, ())))


def class_number(name: str, classes: Sequence[str], where: str) -> int:
    """The place of a class among the known ones."""
    if name not in classes:
        raise BadText(f"{where}: {unknown('class', name, classes)}")
    return list(classes).index(name)
