"""From texts to a corpus: named sets from a local folder, or through Hugging Face's `datasets` where one is online.

The tokeniser is trained on the training split alone; texts of the test split are taken out of the training split.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import random
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from emulon.core.errors import unknown
from reproduce.text.corpora import SPLITS, BadText, Corpus, Kind, Split, Texts, Tokeniser

# Split → (text, answer): a translation, or the name of a class.
Pairs = dict[str, list[tuple[str, str]]]
# Taken out of the training split where a set has no validation split of its own.
VALIDATION = 0.05


@dataclass(frozen=True)
class Source:
    """A named set: what is asked of its texts, and where `datasets` has it.

    `text` names its fields of the text, several joined by +, `answer` that of the answer. Translations have three
    splits, sets to classify train and test alone.
    """

    kind: Kind
    hub: str
    text: str
    answer: str
    classes: tuple[str, ...] = ()
    configuration: str | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        return SPLITS if self.kind == "translation" else ("train", "test")


YAHOO = "question_title+question_content+best_answer"
SOURCES: dict[str, Source] = {
    "multi30k": Source("translation", "bentrevett/multi30k", "de", "en"),
    "iwslt": Source("translation", "IWSLT/iwslt2017", "de", "en", configuration="iwslt2017-de-en"),
    "ag_news": Source(
        "classification", "fancyzhx/ag_news", "text", "label", classes=("World", "Sports", "Business", "Sci/Tech")
    ),
    "imdb": Source("classification", "stanfordnlp/imdb", "text", "label", classes=("neg", "pos")),
    "dbpedia": Source("classification", "fancyzhx/dbpedia_14", "title+content", "label"),
    "yelp": Source("classification", "Yelp/yelp_review_full", "text", "label"),
    "yahoo": Source("classification", "community-datasets/yahoo_answers_topics", YAHOO, "topic"),
}


def source_named(name: str) -> Source:
    if name not in SOURCES:
        raise BadText(unknown("set of texts", name, SOURCES))
    return SOURCES[name]


def data_folder(name: str) -> Path | None:
    """Where this set lies: under the folder that EMULON_DATA names, or under ../shared/data; None where in neither."""
    roots = [os.environ.get("EMULON_DATA"), "../shared/data"]
    return next((Path(root, name) for root in roots if root and Path(root, name).is_dir()), None)


def make_corpus(kind: Kind, pairs: Pairs, vocabulary: int, classes: Sequence[str] = ()) -> Corpus:
    """The splits as words of a tokeniser that is trained on the first of them."""
    empty = [name for name in SPLITS if not pairs.get(name)]
    if empty:
        raise BadText(f"there are no texts to {empty[0]} on; a corpus needs train, validation and test")
    tested = {text for text, _ in pairs["test"]}
    train = [pair for pair in pairs["train"] if pair[0] not in tested]
    both = (part for pair in train for part in (pair if kind == "translation" else pair[:1]))
    tokeniser = Tokeniser.trained_on(both, vocabulary)
    splits = {}
    for name, each in {**pairs, "train": train}.items():
        each = [pair for pair in each if all(part.strip() for part in pair)]
        texts = Texts.of(tokeniser.encode([text for text, _ in each]))
        answers = [answer for _, answer in each]
        if kind == "translation":
            kept = tuple(answers) if name == "test" else ()
            splits[name] = Split(texts, Texts.of(tokeniser.encode(answers)), references=kept)
        else:
            places = [list(classes).index(answer) for answer in answers]
            splits[name] = Split(texts, classes=torch.tensor(places, dtype=torch.int16, device="cpu"))
    return Corpus(kind, tokeniser, tuple(classes), splits)


def named_corpus(name: str, vocabulary: int, folder: Path | str | None = None) -> Corpus:
    """A named set's corpus, from a folder, or from where `data_folder` finds it, or through `datasets`."""
    source = source_named(name)
    found = data_folder(name) if folder is None else Path(folder)
    if found is None:
        pairs, classes = from_hub(source)
    elif not found.is_dir():
        raise BadText(f"there is no folder {str(found)!r}; name the one that holds the texts of {name}")
    else:
        pairs, classes = from_folder(source, found)
    return make_corpus(source.kind, _with_validation(pairs), vocabulary, classes)


def _with_validation(pairs: Pairs) -> Pairs:
    """Where there is no validation split, some of the training texts, the same ones every time."""
    if pairs.get("validation"):
        return pairs
    shuffled = list(dict.fromkeys(pairs["train"]))
    random.Random(0).shuffle(shuffled)
    held = max(1, round(VALIDATION * len(shuffled)))
    return pairs | {"validation": shuffled[:held], "train": shuffled[held:]}


def from_folder(source: Source, folder: Path) -> tuple[Pairs, tuple[str, ...]]:
    """Pairs of files train.de and train.en; tables train*.csv and test.csv whose first column is the class; or IMDB's
    archives. Files may be compressed by gzip."""
    if source.kind == "translation":
        return {split: _parallel(folder, split, (source.text, source.answer)) for split in SPLITS}, ()
    archives = sorted(folder.glob("aclImdb*.tar.gz"))
    if archives:
        return _imdb(archives), source.classes
    named = folder / "classes.txt"
    classes = tuple(_text(named).split("\n")) if named.is_file() else source.classes
    classes = tuple(name.strip() for name in classes if name.strip())
    pairs: Pairs = {}
    for split in source.splits:
        rows = (pair for path in _files(folder, f"{split}*.csv") for pair in _table(path, classes))
        pairs[split] = list(dict.fromkeys(rows))
    return pairs, classes


def _files(folder: Path, name: str) -> list[Path]:
    """These files, compressed or not, in order.

    Raises:
        BadText: There are none.
    """
    found = sorted([*folder.glob(name), *folder.glob(f"{name}.gz")])
    if not found:
        raise BadText(f"{folder} holds no {name} or {name}.gz; give the folder of the texts")
    return found


def _parallel(folder: Path, split: str, languages: tuple[str, str]) -> list[tuple[str, str]]:
    """The files of both languages, line by line; of several test sets the first by name."""
    start = "val" if split == "validation" else split
    one, other = (_text(_files(folder, f"{start}*.{each}")[0]).removesuffix("\n").split("\n") for each in languages)
    if len(one) != len(other):
        raise BadText(
            f"{folder}: the {split} files have {len(one)} lines of {languages[0]} and {len(other)} of {languages[1]}"
        )
    return [(text.strip(), answer.strip()) for text, answer in zip(one, other, strict=True)]


def _table(path: Path, classes: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Classes count from 1 in the first column, the others are the text; a column `gt` counts them from 0."""
    rows = list(csv.reader(io.StringIO(_text(path))))
    header = [cell.lower() for cell in rows[0]] if rows and not rows[0][0].strip().isdigit() else []
    for line, row in enumerate(rows[1:] if header else rows, start=2 if header else 1):
        if not row:
            continue
        shown = dict(zip(header, row, strict=False))
        number, parts = (int(shown["gt"]) + 1, [shown["text"]]) if "gt" in shown else (_whole(row[0]), row[1:])
        if not 1 <= number <= len(classes):
            raise BadText(f"{path}, line {line}: there is no class {row[0]!r}; they are 1 to {len(classes)}")
        yield _clean(" . ".join(parts)), classes[number - 1]


def _whole(cell: str) -> int:
    return int(cell) if cell.strip().isdigit() else 0


def _imdb(archives: Sequence[Path]) -> Pairs:
    pairs: Pairs = {"train": [], "validation": [], "test": []}
    for archive in archives:
        with tarfile.open(archive) as opened:
            for member in opened:
                parts = Path(member.name).parts
                file = opened.extractfile(member) if member.name.endswith(".txt") else None
                if file is not None:
                    split = {"val": "validation"}.get(parts[-3], parts[-3])
                    pairs[split].append((_clean(file.read().decode("utf-8", errors="replace")), parts[-2]))
    return pairs


def _clean(text: str) -> str:
    """Marks of a web page out, blanks to one."""
    return " ".join(text.replace("<br />", " ").replace("\\", " ").split())


def _text(path: Path) -> str:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return content.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadText(f"{path} cannot be read as text in UTF-8: {error}") from None


def from_hub(source: Source) -> tuple[Pairs, tuple[str, ...]]:
    """Through Hugging Face's `datasets`, which downloads it."""
    try:
        import datasets
    except ImportError:
        raise BadText(
            "these texts are not in a local folder (EMULON_DATA names one), and Hugging Face's datasets is not"
            " installed: pip install 'emulon[text]'"
        ) from None
    try:
        loaded: Any = datasets.load_dataset(source.hub, source.configuration)
    except Exception as error:  # whatever a download may end in
        raise BadText(
            f"{source.hub} could not be had through datasets ({type(error).__name__}); where there is no network, name"
            " a folder that holds the texts"
        ) from None
    classes = source.classes
    if source.kind == "classification" and not classes:
        classes = tuple(loaded["train"].features[source.answer].names)

    def pair(row: dict[str, Any]) -> tuple[str, str]:
        row = row.get("translation", row)
        text = " . ".join(str(row[name]) for name in source.text.split("+"))
        answer = row[source.answer]
        return (text.strip(), answer.strip()) if source.kind == "translation" else (_clean(text), classes[answer])

    return {split: [pair(row) for row in loaded[split]] for split in source.splits}, classes
