"""Other people's models as predictors: any `torch.nn.Module`, with its own forward signature, dtype and device, and
Hugging Face checkpoints: a causal model that reads numbers as text, or a compiled one that is given its embeddings."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from emulon.core.errors import BadShape, EmulonError, unknown
from emulon.core.names import Registry
from emulon.core.predictor import FunctionPredictor, NotAPredictor, Predictor, as_predictor, failed, is_wrapper
from emulon.tasks.task import interleave

# Datasets that a module reads at once: memory, not answers, depends on it.
DATASETS = 256

# What the forward pass is given, from examples (xs, ys) and a query: xs (B, n, d), ys (B, n), x_query (B, d).
Layout = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
LAYOUTS: Registry[Layout] = Registry("layout")


def _points(xs: Tensor, ys: Tensor, x_query: Tensor) -> tuple[Tensor, Tensor]:
    """All n + 1 points, and their targets, 0 for the last."""
    return torch.cat([xs, x_query.unsqueeze(1)], dim=1), pad(ys, (0, 1))


def _narrow_tokens(xs: Tensor, ys: Tensor, x_query: Tensor) -> tuple[Tensor, ...]:
    points, targets = _points(xs, ys, x_query)
    wide = pad(targets.unsqueeze(-1), (0, points.shape[-1] - 1))
    return (torch.stack([points, wide], dim=2).flatten(1, 2)[:, :-1],)


def _rows(xs: Tensor, ys: Tensor, x_query: Tensor, y_first: bool = False) -> tuple[Tensor, ...]:
    points, targets = _points(xs, ys, x_query)
    parts = [points, targets.unsqueeze(-1)]
    return (torch.cat(parts[::-1] if y_first else parts, dim=-1),)


# forward(xs, ys, x_query)
LAYOUTS.register(lambda *data: data, "xs, ys, x")
# forward(xs, ys) of n + 1 points; the answer is the last, as in Garg et al.'s code
LAYOUTS.register(_points, "xs, ys")
# forward(tokens) of [0, x₁], [y₁, 0], …, [0, x_query]: (B, 2n + 1, d + 1)
LAYOUTS.register(lambda *data: (interleave(*_points(*data)),), "tokens")
# forward(tokens) of x₁, [y₁, 0, …], …, x_query: (B, 2n + 1, d)
LAYOUTS.register(_narrow_tokens, "tokens, narrow")
# forward(rows) of [x₁, y₁], …, [x_query, 0]: (B, n + 1, d + 1), and of [y₁, x₁], …, [0, x_query]
LAYOUTS.register(_rows, "rows")
LAYOUTS.register(partial(_rows, y_first=True), "rows, y first")


class ModulePredictor:
    """A module behind `predict(xs, ys, x_query)`.

    Data are converted to the dtype and device of its first floating-point parameter. It is asked in eval mode and left
    in the mode it was in. Of an output with more entries than one a dataset the last position's first is the answer.

    Args:
        module: Any module.
        adapter: A name of `LAYOUTS`, or a function (module, xs, ys, x_query) that returns its output.
    """

    def __init__(self, module: nn.Module, adapter: str | Callable[..., Any]) -> None:
        self.module = module
        layout = LAYOUTS.named(adapter) if isinstance(adapter, str) else None
        self._ask: Any = adapter if layout is None else lambda module, *data: module(*layout(*data))

    def predict(
        self, xs: Float[Tensor, "*batch n d"], ys: Float[Tensor, "*batch n"], x_query: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch"]:
        """The module's answers, one a dataset."""
        lead = xs.shape[:-2]
        flat = [part.reshape(math.prod(lead), *part.shape[len(lead) :]) for part in (xs, ys, x_query)]
        training = self.module.training
        self.module.eval()
        try:
            with torch.set_grad_enabled(x_query.requires_grad):
                parts = [self._answers(*part) for part in zip(*(each.split(DATASETS) for each in flat), strict=True)]
        finally:
            self.module.train(training)
        return torch.cat(parts).reshape(lead)

    def _answers(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        tensors = chain(self.module.parameters(), self.module.buffers())
        like = next((one for one in tensors if one.is_floating_point()), x_query)
        data = [part.to(like.device, like.dtype) for part in (xs, ys, x_query)]
        name = type(self.module).__name__
        try:
            output = self._ask(self.module, *data)
        except Exception as error:
            if isinstance(error, EmulonError) or "requires grad" in str(error):
                raise
            advice = f"; if it reads prompts of another layout give adapter= one of {', '.join(map(repr, LAYOUTS))}"
            raise failed(name, xs.shape, error, f"{advice}, if fewer points give points=") from error
        return _last(output, len(xs), name).to(x_query.device).double()


def _last(output: Any, datasets: int, name: str) -> Tensor:
    """One number a dataset: of several loop counts or layers the last, of several positions the last, of several
    numbers at it the first."""
    while isinstance(output, tuple | list) and output:
        output = output[-1] if isinstance(output, list) else output[0]
    for field in ("logits", "last_hidden_state"):
        output = getattr(output, field, output)
    if not isinstance(output, Tensor):
        raise BadShape(f"{name} answered {type(output).__name__}; wanted a tensor: give adapter= a function instead")
    if output.ndim not in (1, 2, 3) or len(output) != datasets or output.numel() < datasets:
        raise BadShape(
            f"{name} answered shape {tuple(output.shape)} for {datasets} datasets; wanted (B,), (B, T) or (B, T, k), "
            "the answer at the last of T: give adapter= a function of (model, xs, ys, x_query) instead"
        )
    answers = output[:, -1] if output.ndim > 1 else output
    return answers[:, 0] if answers.ndim > 1 else answers


def adapt(model: object, adapter: Any = None, *, loops: int | None = None) -> Predictor:
    """Put anything that predicts in context behind `predict(xs, ys, x_query)`.

    Args:
        model: A predictor, a function, a scikit-learn estimator or anything else with fit and predict, a compiled
            program, a `torch.nn.Module`, or a causal language model of transformers.
        adapter: How a module is asked, where its forward pass does not tell: a name of `LAYOUTS` ("tokens", "rows",
            "xs, ys", …), the tokenizer of a language model, or a function (model, xs, ys, x_query) that returns one
            number a dataset.
        loops: Loop count of a compiled looped transformer.
    Returns:
        A predictor.
    Raises:
        NotAPredictor: The model cannot be asked, or its forward pass leaves open how.

    Example:
        >>> adapt(lambda xs, ys, x: ys.mean(dim=-1)).predict(torch.ones(3, 1), torch.arange(3.0), torch.ones(1))
        tensor(1.)
    """
    if callable(getattr(adapter, "encode", None)) and callable(getattr(adapter, "decode", None)):
        return TextPredictor(model, adapter)
    if isinstance(adapter, str):
        if not isinstance(model, nn.Module):
            raise NotAPredictor(f"adapter={adapter!r} is for modules, and this is a {type(model).__name__}")
        return ModulePredictor(model, adapter)
    if adapter is not None:
        if not callable(adapter):
            raise EmulonError(unknown("layout", str(adapter), LAYOUTS))
        if isinstance(model, nn.Module):
            return ModulePredictor(model, adapter)
        return FunctionPredictor(lambda xs, ys, x_query: adapter(model, xs, ys, x_query))
    ours = type(model).__module__.partition(".")[0] == __name__.partition(".")[0]
    if isinstance(model, nn.Module) and not (ours or hasattr(model, "predict") or is_wrapper(model)):
        return ModulePredictor(model, _layout_of(model))
    return as_predictor(model, loops=loops)


def _layout_of(module: nn.Module) -> str:
    """The layout that the forward pass itself tells: by the number of arguments that it must be given."""
    name, parameters = type(module).__name__, inspect.signature(module.forward).parameters.values()
    if hasattr(module, "config") and "input_ids" in inspect.signature(module.forward).parameters:
        raise NotAPredictor(f"{name} reads text: give its tokenizer, as adapter=tokenizer")
    required = [each for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(required) in (2, 3):
        return ("xs, ys", "xs, ys, x")[len(required) - 2]
    raise NotAPredictor(
        f"{name} reads {len(required)} tensor{'s' * (len(required) != 1)}, and there are several ways to write a"
        f" prompt as that: give adapter= one of {', '.join(map(repr, LAYOUTS))}, or a function of (model, xs, ys,"
        " x_query)"
    )


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
    # the compiler, which adapters of other models do without
    from emulon.machine.targets.gpt2 import SLOTS
    from emulon.machine.targets.stock import NeedsTransformers

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
        from emulon.machine.tokens import Interleaved

        self.model, self.labels = model, labels
        self.program = SimpleNamespace(prompt=Interleaved(**labels["prompt"]))

    @torch.no_grad()
    def predict(self, xs: Tensor, ys: Tensor) -> Tensor:
        from emulon.machine.targets.gpt2 import predict_gpt2

        return predict_gpt2(self.model, self.labels, xs.to(self.model.dtype), ys.to(self.model.dtype))
