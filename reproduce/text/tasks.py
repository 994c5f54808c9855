"""Tasks over text: translation by a decoder that reads the source as a prefix, classification by an encoder."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Real
from torch import Tensor

from emulon.core.errors import EmulonError
from emulon.tasks.task import NOT_ASKED, PAD, Prompts, Task, stream_seed
from reproduce.text.corpora import END, START, BadText, Corpus, Kind, Split, load_corpus

# Texts are batched with others of up to a quarter, a half, … of the longest.
BUCKETS = 4
# What a run's folder keeps of its corpus: the words, and the names of classes.
KEPT = "corpus.safetensors"


class TextTask(Task):
    """Supplies `prompts_of` and `lengths_of`; batches are drawn from one bucket of like lengths each, with replacement,
    so that what a step sees is a function of seed and step.

    A token is a pair, the number of a word and its place, so that a text reads the same however far it is padded.
    """

    data: str
    longest: int
    only: int
    kind: ClassVar[Kind]
    reads_words = True
    measure = "cross entropy"
    # no fields of the dataclasses below: texts have neither
    features = 0
    points = 1

    @property
    def width_in(self) -> int:
        return 2

    @property
    def vocabulary(self) -> int:
        return len(self.corpus.tokeniser)

    @property
    def length(self) -> int:
        """Of the texts of a batch: the bucket's, where it is one."""
        return self.only or self.longest

    @cached_property
    def corpus(self) -> Corpus:
        return load_corpus(self.data, self.kind)

    @abstractmethod
    def lengths_of(self, split: Split) -> Int[Tensor, " texts"]:
        """How long a bucket each text needs."""

    @abstractmethod
    def prompts_of(self, split: Split, rows: Int[Tensor, " rows"]) -> Prompts:
        """These texts of a split, padded to the bucket's length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest < 1:
            raise EmulonError(f"longest={self.longest} makes no sense for a task; longest must be 1 or more")

    @cached_property
    def buckets(self) -> tuple[Task, ...]:
        """This task restricted to texts of similar length; buckets without training texts are left out."""
        if self.only:
            return (self,)
        each = [dataclasses.replace(self, only=edge) for edge in self._edges]  # type: ignore[type-var]  # a dataclass
        return tuple(one for one in each if one.size)

    @property
    def _edges(self) -> list[int]:
        """The lengths of the buckets, the shortest first."""
        return sorted({math.ceil(self.longest * part / BUCKETS) for part in range(1, BUCKETS + 1)})

    @cached_property
    def _ends(self) -> list[int]:
        """The numbers of training texts in the buckets up to each."""
        return list(itertools.accumulate(bucket.size for bucket in self.buckets))  # type: ignore[attr-defined]  # text tasks

    def bucket_at(self, seed: int, step: int) -> int:
        """Which bucket a step is drawn from: each as often as it has texts."""
        draw = stream_seed(seed, step) / 2**63 * self._ends[-1]
        return min(bisect.bisect_right(self._ends, draw), len(self._ends) - 1)

    @property
    def size(self) -> int:
        """Training texts."""
        return len(self.rows("train"))

    def rows(self, name: str) -> Int[Tensor, " rows"]:
        """The texts of a split that belong here: in this bucket and in no shorter one."""
        lengths = self.lengths_of(self.corpus.split(name))
        below = max((edge for edge in self._edges if edge < self.only), default=0)
        return ((lengths > below) & (lengths <= self.length)).nonzero().squeeze(-1)

    @cached_property
    def _placed(self) -> dict[torch.device, Prompts]:
        return {}

    def sample(self, generator: torch.Generator, batch: int, live: Float[Tensor, " features"] | None = None) -> Prompts:
        if live is not None:
            raise EmulonError("texts have no features for a curriculum to begin with; leave start_features out")
        device = generator.device
        if device not in self._placed:
            rows = self.rows("train")
            if not len(rows):
                raise BadText(f"{self.data} has no training text of at most {self.length} words; raise longest")
            whole = self.prompts_of(self.corpus.split("train"), rows)
            self._placed[device] = Prompts(*(part.to(device) for part in (whole.tokens, whole.targets, whole.truth)))
        here = self._placed[device]
        chosen = torch.randint(len(here.tokens), (batch,), generator=generator, device=device)
        return Prompts(here.tokens[chosen], here.targets[chosen], here.truth[chosen])

    def held_out_prompts(self, seed: int, batch: int) -> Prompts:
        """The validation split, or so many texts of it."""
        rows = self.rows("validation")
        if not len(rows):
            raise BadText(f"{self.data} has no validation text of at most {self.length} words; raise longest")
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed), device="cpu")[:batch]
        return self.prompts_of(self.corpus.split("validation"), rows[chosen])

    def error_of(
        self, answers: Float[Tensor, "batch asked scores"], truth: Real[Tensor, "batch asked out"]
    ) -> Float[Tensor, "batch asked out"]:
        """Cross entropy, not a number where nothing is asked."""
        entropy = F.cross_entropy(answers.float().mT, truth[..., 0], ignore_index=NOT_ASKED, reduction="none")
        return entropy.masked_fill(truth[..., 0] == NOT_ASKED, math.nan).unsqueeze(-1)

    def curve(self, errors: Float[Tensor, "batch asked out"]) -> Float[Tensor, " curve"]:
        """One number, the mean over all that is asked."""
        return errors.double().nanmean().reshape(1).cpu()

    def baselines(self, prompts: Prompts) -> dict[str, Float[Tensor, " curve"]]:
        """How often each answer occurs in training, whatever the text (add-one smoothed)."""
        train = self.corpus.split("train")
        given = torch.cat([self.prompts_of(train, rows).targets.flatten() for rows in self.rows("train").split(4096)])
        counts = torch.bincount(given[given != NOT_ASKED], minlength=self.width_out).double() + 1
        scores = (counts / counts.sum()).log().expand(*prompts.truth.shape[:2], -1)
        return {"frequencies": self.curve(self.error_of(scores, prompts.truth))}

    def save_data(self, folder: Path) -> None:
        dataclasses.replace(self.corpus, splits={}).save(folder / KEPT)

    def with_saved_data(self, folder: Path) -> Task:
        if not (folder / KEPT).is_file():
            return self
        return dataclasses.replace(self, data=str(folder / KEPT))  # type: ignore[type-var]  # text tasks are dataclasses

    def placed(self, words: Int[Tensor, "batch words"], first: int = 0) -> Int[Tensor, "batch words 2"]:
        """Words as tokens; places count from `first`."""
        places = first + torch.arange(words.shape[-1], device=words.device)
        return torch.stack([words, places.expand_as(words)], dim=-1)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts of people as words; refused where there is nothing to read, or more than is read."""
        for text in texts:
            if not text.strip():
                raise BadText("the text is empty; write something")
        encoded = self.corpus.tokeniser.encode(texts)
        for text, words in zip(texts, encoded, strict=True):
            if len(words) > self.longest_text:
                raise BadText(
                    f"{text[:24]!r}… is {len(words)} words long, and this run reads {self.longest_text}; shorten it"
                )
        return encoded

    @property
    def longest_text(self) -> int:
        """In words, of a text that is read whole."""
        return self.longest


@dataclass(frozen=True)
class Translation(TextTask, name="translation"):
    """The source text is a prefix, padded to the length of its bucket, and every word of the target is asked of a
    decoder that has read it and the words before (Gao et al. 2024, section 5.5). Longer pairs are left out.

    Places count from 0 in the source and from `longest` in the target, so that they do not depend on the bucket.
    """

    data: str = ""
    longest: int = 64
    only: int = 0
    """a bucket alone: pairs of about this length"""
    kind = "translation"
    causal = True
    measure = "cross entropy per word"

    @property
    def width_out(self) -> int:
        return self.vocabulary

    @property
    def tokens(self) -> int:
        return 2 * self.longest

    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        """The second half: <s> and the target's words."""
        return states[..., states.shape[-2] // 2 :, :]

    def lengths_of(self, split: Split) -> Int[Tensor, " texts"]:
        assert split.answers is not None
        return torch.maximum(split.texts.lengths, split.answers.lengths + 1)

    def prompts_of(self, split: Split, rows: Int[Tensor, " rows"]) -> Prompts:
        assert split.answers is not None
        source = split.texts.padded(rows, self.length, PAD)
        target = split.answers.padded(rows, self.length, PAD)
        before = F.pad(target, (1, -1), value=START)
        wanted = target.masked_fill(target == PAD, NOT_ASKED)
        ends = split.answers.lengths[rows].unsqueeze(-1)
        wanted = torch.where(torch.arange(self.length, device="cpu") == ends, END, wanted).unsqueeze(-1)
        return Prompts(self.pair(source, before), wanted, wanted)

    def pair(
        self, source: Int[Tensor, "batch words"], target: Int[Tensor, "batch more"]
    ) -> Int[Tensor, "batch both 2"]:
        """Source and target words as tokens; the first target word is <s>."""
        return torch.cat([self.placed(source), self.placed(target, self.longest)], dim=1)


@dataclass(frozen=True)
class Classification(TextTask, name="classification"):
    """A text's class, read off the mean of its tokens' states by an encoder: every token sees every other (Gao et al.
    2024, section 5.5, which does not say where it is read). Longer texts are cut in training and evaluation."""

    data: str = ""
    longest: int = 128
    only: int = 0
    """a bucket alone: texts of about this length"""
    kind = "classification"
    causal = False

    @property
    def width_out(self) -> int:
        return len(self.corpus.classes)

    @property
    def tokens(self) -> int:
        return self.longest

    @property
    def longest_text(self) -> int:
        return self.longest - 1

    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        return states[..., :1, :]

    def lengths_of(self, split: Split) -> Int[Tensor, " texts"]:
        return (split.texts.lengths + 1).clamp(max=self.longest)

    def prompts_of(self, split: Split, rows: Int[Tensor, " rows"]) -> Prompts:
        assert split.classes is not None
        wanted = split.classes[rows].long().view(-1, 1, 1)
        return Prompts(self.read(split.texts.padded(rows, self.length - 1, PAD)), wanted, wanted)

    def read(self, words: Int[Tensor, "batch words"]) -> Int[Tensor, "batch tokens 2"]:
        """<s> and the words, as tokens."""
        return self.placed(F.pad(words, (1, 0), value=START))
