"""Hugging Face checkpoints as predictors: a causal model that reads numbers as text, or a compiled one that is given
its embeddings."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from emulon.core.errors import BadShape, EmulonError
from emulon.core.predictor import NotAPredictor
from emulon.machine.targets.gpt2 import SLOTS, NeedsTransformers, predict_gpt2
from emulon.machine.tokens import Interleaved

TEMPLATE = "x = {x}; y = {y}\n"
DIGITS = 2
# Prompts that the model reads at once.
PROMPTS = 32
# A number, begun: a space, a sign, up to four digits, and so many decimals as are asked for.
BEGUN = r" ?-?(?:\d{{1,4}}(?:\.\d{{0,{digits}}})?)?"
WHOLE = r" ?-?\d{{1,4}}(?:\.\d{{1,{digits}}})?"
NUMERIC = set(" -.0123456789")
# Tokens of an answer: a number as above has at most so many characters, at two decimals.
LONGEST = 12


class TextPredictor:
    """A causal language model, asked in words: every example is a line of `template`, numbers have `digits` decimals,
    and the last line ends before its {y}.

    The answer is decoded greedily among the tokens that go on with a number, so that there is always one, and ends
    where the model would rather write something else. `model` and `tokenizer` are as `transformers` makes them.
    """

    features = 2  # of the task by default: what is read as text is long, and every digit is a token

    def __init__(self, model: Any, tokenizer: Any, template: str = TEMPLATE, digits: int = DIGITS) -> None:
        if template.count("{x}") != 1 or template.count("{y}") != 1 or template.index("{x}") > template.index("{y}"):
            raise EmulonError(f"a template has one {{x}} and, behind it, one {{y}}, as {TEMPLATE!r}; got {template!r}")
        self.model, self.tokenizer, self.template, self.digits = model.eval(), tokenizer, template, digits
        self._begun, self._whole = (re.compile(part.format(digits=digits)) for part in (BEGUN, WHOLE))
        self._positions = "position_ids" in inspect.signature(model.forward).parameters
        self._continuing = lru_cache(maxsize=None)(self._find_continuing)
        pieces = {number: tokenizer.decode([number]) for number in range(model.config.vocab_size)}
        self._pieces = {number: piece for number, piece in pieces.items() if piece and not set(piece) - NUMERIC}
        if not any(piece.strip().isdigit() for piece in self._pieces.values()):
            raise NotAPredictor(
                "the tokenizer has no token for a digit, so that the model cannot answer with a number; was it saved "
                "beside the model?"
            )

    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        lead = xs.shape[:-2]
        flat = xs.reshape(-1, *xs.shape[-2:]), ys.reshape(-1, ys.shape[-1]), x_query.reshape(-1, x_query.shape[-1])
        prompts = [self.prompt(*(part.tolist() for part in row)) for row in zip(*flat, strict=True)]
        parts = [prompts[start : start + PROMPTS] for start in range(0, len(prompts), PROMPTS)]
        answers = [answer for part in parts for answer in self._answers(part)]
        return torch.tensor(answers, dtype=torch.float64, device="cpu").reshape(lead)

    def prompt(self, xs: Sequence[Sequence[float]], ys: Sequence[float], x_query: Sequence[float]) -> str:
        """What the model reads."""
        lines = [
            self.template.replace("{x}", self._format(x)).replace("{y}", self._format([y]))
            for x, y in zip(xs, ys, strict=True)
        ]
        asked = self.template.partition("{y}")[0].replace("{x}", self._format(x_query))
        return "".join(lines) + asked.rstrip(" ")

    def _format(self, numbers: Iterable[float]) -> str:
        return " ".join(f"{number:.{self.digits}f}" for number in numbers)

    @torch.no_grad()
    def _answers(self, prompts: Sequence[str]) -> list[float]:
        tokens = [list(self.tokenizer.encode(prompt)) for prompt in prompts]
        self._require_room(max(map(len, tokens)) + LONGEST)
        written, going = [""] * len(prompts), list(range(len(prompts)))
        for _ in range(LONGEST):
            scores = self._scores([tokens[row] for row in going])
            going = [row for row, score in zip(going, scores, strict=True) if self._go_on(row, score, tokens, written)]
            if not going:
                break
        return [float(number) for number in written]

    def _go_on(self, row: int, score: Tensor, tokens: list[list[int]], written: list[str]) -> bool:
        """Adds the best token that continues the number; false where it is complete and the model would end it."""
        allowed = self._continuing(written[row])
        complete = self._whole.fullmatch(written[row]) is not None
        if not allowed or (complete and int(score.argmax()) not in allowed):
            return False
        best = allowed[int(score[allowed].argmax())]
        tokens[row].append(best)
        written[row] += self._pieces[best]
        return True

    def _find_continuing(self, text: str) -> list[int]:
        return [number for number, piece in self._pieces.items() if self._begun.fullmatch(text + piece)]

    def _scores(self, rows: list[list[int]]) -> Tensor:
        """The logits of the next token; shorter rows are padded on the left and the padding masked."""
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device="cpu")
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device="cpu")
        more = {"position_ids": (mask.cumsum(dim=-1) - 1).clamp(min=0)} if self._positions else {}
        device = self.model.device
        given = {"input_ids": ids, "attention_mask": mask, **more}
        scores: Tensor = self.model(**{name: part.to(device) for name, part in given.items()}).logits[:, -1]
        return scores.float().cpu()

    def _require_room(self, needed: int) -> None:
        room = getattr(self.model.config, "max_position_embeddings", None)
        if room is not None and needed > room:
            raise BadShape(f"a prompt of {needed} tokens, where this model reads {room}; ask about fewer --points")


def is_checkpoint(path: Path) -> bool:
    """A folder whose config.json is of transformers' kind."""
    try:
        return "model_type" in json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def load_checkpoint(folder: str | Path) -> Any:
    """What `save_gpt2` wrote, as a machine; any other causal model with its tokenizer, as a `TextPredictor`.

    Weights are safetensors, and nothing is fetched.
    """
    folder = Path(folder)
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Model
        from transformers.utils import logging
    except ImportError as missing:
        raise NeedsTransformers(f"{folder} needs transformers; install it with: pip install 'emulon[hf]'") from missing
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it unannotated
    local: dict[str, Any] = {"local_files_only": True, "use_safetensors": True}
    try:
        if (folder / SLOTS).is_file():
            labels = json.loads((folder / SLOTS).read_text(encoding="utf-8"))
            dtype = getattr(torch, labels["dtype"])
            with torch.device("cpu"):
                compiled: Any = GPT2Model.from_pretrained(folder, dtype=dtype, **local)
            return _Machine(compiled.eval(), labels)
        with torch.device("cpu"):
            model = AutoModelForCausalLM.from_pretrained(folder, **local)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        first = " ".join(str(error).split())[:200]
        raise NotAPredictor(
            f"{folder} is no causal model with its tokenizer (save_pretrained of both): {first}"
        ) from error
    return TextPredictor(model, tokenizer)


class _Machine:
    """A compiled program's checkpoint, with nothing of emulon's transformer."""

    def __init__(self, model: Any, labels: dict[str, Any]) -> None:
        self.model, self.labels = model, labels
        self.program = SimpleNamespace(prompt=Interleaved(**labels["prompt"]))

    @torch.no_grad()
    def predict(self, xs: Tensor, ys: Tensor) -> Tensor:
        return predict_gpt2(self.model, self.labels, xs.to(self.model.dtype), ys.to(self.model.dtype))
