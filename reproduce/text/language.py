"""Answers of learners of text: translations by greedy or beam search, classes; BLEU and accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from emulon.core.errors import NoRun
from emulon.models import Learner
from emulon.tasks.task import PAD
from emulon.training import RunFolder, load_learner
from reproduce.text.corpora import END, START, BadText, Texts
from reproduce.text.tasks import Classification, TextTask, Translation

# Hypotheses, or texts, that are read at once: memory, not answers, depends on it.
PART = 512
# The normal deviate of a 95 % interval.
DEVIATE = 1.959964
Asked = TypeVar("Asked", bound=TextTask)


def open_run(path: Path | str, kind: type[Asked]) -> tuple[Learner, Asked]:
    """A trained run on texts and its task, from its folder alone: the corpus may be elsewhere by now."""
    folder = RunFolder(Path(path))
    task = folder.config().make_task()
    if not isinstance(task, kind):
        name = folder.config().task.task.partition(":")[0]
        raise NoRun(f"{path} is a run on {name}, and this asks for one on {kind.kind}; name another folder")
    kept = task.with_saved_data(folder.path)
    assert isinstance(kept, kind)
    return load_learner(path)[0], kept


def translated(learner: Learner, task: Translation, texts: Sequence[str], beams: int = 1) -> list[str]:
    """The learner's translations of these texts, by greedy search or by a beam search with `beams` hypotheses."""
    return [task.corpus.tokeniser.decode(words) for words in translations(learner, task, task.encode(texts), beams)]


@torch.no_grad()
def translations(
    learner: Learner, task: Translation, sources: Sequence[Sequence[int]], beams: int = 1
) -> list[list[int]]:
    """Like `translated`, from and to numbers of words. Texts of similar length share a batch."""
    learner.eval()
    said: list[list[int]] = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    count = max(1, PART // beams)
    for start in range(0, len(order), count):
        rows = order[start : start + count]
        found = _search(learner, task, [sources[row] for row in rows], beams)
        for row, words in zip(rows, found, strict=True):
            said[row] = words
    return said


def _search(learner: Learner, task: Translation, sources: Sequence[Sequence[int]], beams: int) -> list[list[int]]:
    """Beam search: the `beams` most probable beginnings are continued until all have ended; of these the most probable
    per word. One beam is the greedy choice."""
    device = learner.position.device
    texts, longest = Texts.of(sources), max(map(len, sources))
    source = texts.padded(torch.arange(len(sources), device="cpu"), longest, PAD).to(device)
    source = source.repeat_interleave(beams, dim=0)
    written = torch.full((len(sources), beams, 1), START, device=device)
    score = torch.full((len(sources), beams), -math.inf, device=device)
    score[:, 0] = 0.0  # the beginnings are all the same, and one is enough
    for _ in range(task.longest):
        tokens = task.pair(source, written.flatten(0, 1))
        state = learner.states(learner.embed(tokens), 1, learner.visible(tokens))[-1, :, -1]
        chances = learner.read_out(state).float().log_softmax(-1).unflatten(0, (-1, beams))
        score, written = _continued(score, written, chances)
        if _ended(written).all():
            break
    lengths = (written[..., 1:] != PAD).sum(-1)
    best = (score / lengths).argmax(dim=-1)
    rows = written[torch.arange(len(sources), device=device), best, 1:].tolist()
    return [[word for word in row if word not in (PAD, END)] for row in rows]


def _continued(
    score: Float[Tensor, "texts beams"],
    written: Int[Tensor, "texts beams words"],
    chances: Float[Tensor, "texts beams vocabulary"],
) -> tuple[Float[Tensor, "texts beams"], Int[Tensor, "texts beams more"]]:
    """The most probable continuations. Finished answers are padded; padding and <s> occur nowhere else."""
    chances = chances.clone()
    chances[..., [PAD, START]] = -math.inf
    ended = _ended(written)
    chances[ended] = -math.inf
    chances[..., PAD] = torch.where(ended, 0.0, chances[..., PAD])
    total = (score.unsqueeze(-1) + chances).flatten(1)
    score, chosen = total.topk(score.shape[-1], dim=-1)
    beam, word = chosen // chances.shape[-1], chosen % chances.shape[-1]
    kept = written.gather(1, beam.unsqueeze(-1).expand(-1, -1, written.shape[-1]))
    return score, torch.cat([kept, word.unsqueeze(-1)], dim=-1)


def _ended(written: Int[Tensor, "texts beams words"]) -> Bool[Tensor, "texts beams"]:
    return (written[..., -1] == END) | (written[..., -1] == PAD)


@torch.no_grad()
def class_scores(learner: Learner, task: Classification, texts: Texts) -> Float[Tensor, "texts classes"]:
    """The probability of each class, of texts in words; longer ones than are read are cut."""
    learner.eval()
    device, longest = learner.position.device, min(int(texts.lengths.max()), task.longest_text)
    said = []
    for rows in torch.arange(len(texts), device="cpu").split(PART):
        tokens = task.read(texts.padded(rows, longest, PAD)).to(device)
        said.append(task.asked(learner(tokens))[:, 0].float().softmax(-1).cpu())
    return torch.cat(said)


def classified(learner: Learner, task: Classification, text: str) -> dict[str, float]:
    """The probability of each class of one text, the most probable first."""
    chances = class_scores(learner, task, Texts.of(task.encode([text])))[0].tolist()
    return dict(sorted(zip(task.corpus.classes, chances, strict=True), key=lambda each: -each[1]))


@dataclass(frozen=True)
class Share:
    """A share of right answers, and Wilson's 95 % interval of it."""

    right: int
    asked: int

    @property
    def value(self) -> float:
        return self.right / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """Claim: {p : |p̂ − p| ≤ z·√(p(1−p)/n)}, Wilson 1927; it never leaves [0, 1]."""
        n, z = self.asked, DEVIATE
        middle = (self.value + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(self.value * (1 - self.value) / n + z * z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)


def accuracy(learner: Learner, task: Classification, split: str = "test") -> Share:
    whole = task.corpus.split(split)
    assert whole.classes is not None
    said = class_scores(learner, task, whole.texts).argmax(-1)
    return Share(int((said == whole.classes).sum()), len(whole))


@torch.no_grad()
def entropy(learner: Learner, task: TextTask, split: str = "test") -> float:
    """Mean cross entropy of all that is asked of a split, in nats."""
    learner.eval()
    whole, device, errors = task.corpus.split(split), learner.position.device, []
    for rows in task.rows(split).split(128):
        prompts = task.prompts_of(whole, rows)
        said = task.asked(learner(prompts.tokens.to(device)))
        errors.append(task.error_of(said, prompts.truth.to(device)).cpu())
    return float(task.curve(torch.cat(errors)))


def bleu(said: Sequence[str], references: Sequence[str], resamples: int = 0) -> tuple[float, float]:
    """sacreBLEU's (Post 2018): cased, its standard tokeniser, one reference each; and half of its 95 % interval, of so
    many resamples of the sentences."""
    try:
        import sacrebleu
    except ImportError:
        raise BadText("BLEU is counted by sacrebleu: pip install 'emulon[text]'") from None
    library: Any = sacrebleu  # its metrics are not among the names that it declares
    score = library.BLEU().corpus_score(list(said), [list(references)], n_bootstrap=max(resamples, 1))
    return float(score.score), float(score._ci) if resamples > 1 else 0.0
