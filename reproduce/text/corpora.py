"""A corpus: texts as numbers of words (byte-level BPE), in one safetensors file that torch alone can read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from emulon.core.errors import BadConfig
from emulon.core.files import make_folder, write_atomically

Kind = Literal["translation", "classification"]
SPLITS = ("train", "validation", "test")
FORMAT = "emulon corpus 1"
# The words with these numbers are no part of any text: padding, the beginning and the end of an answer.
SPECIAL = ("<pad>", "<s>", "</s>")
START, END = 1, 2
# Bytes, and the special words: fewer cannot write every text. More do not fit the 16 bits of a corpus' files.
FEWEST_WORDS, MOST_WORDS = 256 + len(SPECIAL), 2**15 - 1


class BadText(BadConfig):
    """Texts that cannot be read, learned from or answered, with the reason.

    Cure: do what the message says: shorten the text, name another folder, or install `emulon[text]`.
    """


class Tokeniser:
    """A byte-level BPE of the `tokenizers` library, kept as its own JSON: any text is a sequence of its words, and a
    sequence of words is bytes.

    Encoding takes the library; decoding takes nothing, so that a machine without it can write texts down.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.words: dict[str, int] = json.loads(text)["model"]["vocab"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadText(f"this is no tokeniser of the tokenizers library ({error}); make the corpus again") from error

    @classmethod
    def trained_on(cls, texts: Iterable[str], vocabulary: int) -> Tokeniser:
        """A new one with at most so many words; it should see training texts only."""
        if not FEWEST_WORDS <= vocabulary <= MOST_WORDS:
            raise BadText(f"a vocabulary of {vocabulary} words cannot be; choose {FEWEST_WORDS} to {MOST_WORDS}")
        tokenizers = _library()
        made = tokenizers.ByteLevelBPETokenizer(add_prefix_space=True)
        made.train_from_iterator(texts, vocabulary, min_frequency=0, special_tokens=list(SPECIAL), show_progress=False)
        return cls(made.to_str())

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [each.ids for each in self._encoder.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Special words are left out; bytes that are no UTF-8 become the replacement character."""
        written = "".join(self._spelling[word] for word in ids if word >= len(SPECIAL))
        return bytes(_BYTES[character] for character in written).decode("utf-8", errors="replace").strip()

    @cached_property
    def _encoder(self) -> Any:
        return _library().Tokenizer.from_str(self.text)

    @cached_property
    def _spelling(self) -> dict[int, str]:
        return {number: word for word, number in self.words.items()}


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise BadText("texts are cut into words by the tokenizers library: pip install 'emulon[text]'") from None
    return tokenizers


def _bytes() -> dict[str, int]:
    """How byte-level BPE writes bytes: Latin-1's visible characters as themselves, the others from 256 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(visible))
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _bytes()


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
    """Texts and the answers to them: other texts, or classes. `references` are the answers before tokenisation."""

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
        notes = {"format": FORMAT, "kind": self.kind, "tokeniser": self.tokeniser.text}
        notes |= {"classes": json.dumps(self.classes), "references": json.dumps(references)}
        make_folder(Path(path).parent)
        write_atomically(path, save(tensors, notes))


def load_corpus(path: Path | str, kind: Kind) -> Corpus:
    """A corpus' file. Read once as long as it does not change."""
    path = Path(path)
    if not path.is_file():
        raise BadText(
            f"there is no corpus {str(path)!r}; make one (docs/tutorials/texts.md), and name it behind the"
            f" task: {kind}:data=FILE"
        )
    corpus = _read(path, path.stat().st_mtime_ns)
    if corpus.kind != kind:
        raise BadText(f"{path} is a corpus for {corpus.kind}, not for {kind}")
    return corpus


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
