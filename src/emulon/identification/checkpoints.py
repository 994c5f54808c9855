"""Folders of other people's models as predictors: runs of three public codes, and language models of transformers.

The public codes are Garg et al. 2022 (dtsip/in-context-learning), Yang et al. 2023 (Leiay/looped_transformer) and
Raventós et al. 2023 (mansheej/icl-task-diversity): GPT-2 blocks between a linear map in and one out, over the prompt
x₁, y₁, x₂, …; the answer at x_i is read at the token of x_i. They differ in the names of the weights, in how a y
becomes a token, and in loops:

- Garg et al.: config.yaml and state.pt, or model_STEP.pt. A y stands in the first coordinate of a token as wide as x.
- Yang et al.: the same files; model.family is gpt2_loop where one decoder is applied training.curriculum.loops.end
  times, to the sum (or product) of its last output and the prompt.
- Raventós et al.: config.json, and the parameters in params.npz, flattened, as this writes them in their environment:
  `numpy.savez("params.npz", **flax.traverse_util.flatten_dict(params, sep="/"))`. Tokens are one wider than x.

A .pt file is a pickle, which may run code when it is read: only tensors and plain values are accepted of it
(`weights_only`). A model.safetensors beside it is read instead.
"""

from __future__ import annotations

import inspect
import json
import pickle
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from emulon.core.errors import BadShape, EmulonError
from emulon.core.predictor import NotAPredictor
from emulon.identification.adapters import DATASETS, LAYOUTS
from emulon.machine.targets.gpt2 import SLOTS, NeedsTransformers, predict_gpt2
from emulon.machine.tokens import Interleaved
from emulon.models.block import BlockShape, Decoder
from emulon.tasks import DecisionTree, Linear, RegressionTask, ReluNetwork, SparseLinear

YAML, JSON, STATE, SAFE, PARAMETERS = "config.yaml", "config.json", "state.pt", "model.safetensors", "params.npz"
# How a looped decoder takes its last output and the prompt, by its name in the configuration.
LOOPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"z=f(x+z)": torch.add, "z=f(x*z)": torch.mul}
# No dataset here distinguishes so many task vectors from Gaussian ones.
MANY_TASKS = 2**14
# From the names of weights in the three codes to ours, one after the other; no prompt uses what is then called unused.
NAMES = {
    r"/": ".",
    r"^_orig_mod\.": "",
    r".*\.attn\.(masked_)?bias$|.*\.wte\.weight$": "unused",
    r"^_h\.(hs_)?|^_backbone\.(transformer\.)?(h\.)?": "",
    r"\.(kernel|scale|embedding)$": ".weight",
    r"^_(read_)?(in|out)\.": r"read_\2.",
    r"^wpe\.weight$": "position",
    r"^ln_f\.": "decoder.last_norm.",
    r"^(\d+)\.": r"decoder.blocks.\1.",
    r"\.ln_1\.": ".attention_norm.",
    r"\.ln_2\.": ".mlp_norm.",
    r"\.attn\.c_attn\.": ".attention.to_qkv.",
    r"\.attn\.c_proj\.": ".attention.merge.",
    r"\.mlp\.c_fc\.": ".widen.",
    r"\.mlp\.c_proj\.": ".narrow.",
}


class CheckpointLearner(nn.Module):
    """A trained model of one of the three codes, as a predictor.

    Args:
        model: The configuration of its sizes: n_dims, n_embd, n_layer, n_head, and loop_func.
        weights: By our names.
        points: Of a prompt, as many as it was trained on.
        task: What it was trained on; None where that has no counterpart here.
        loops: How often the decoder is applied; 0 for once, to the prompt alone.
    """

    def __init__(
        self,
        model: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        points: int,
        task: RegressionTask | None,
        loops: int = 0,
    ) -> None:
        super().__init__()
        self.features, width, heads, layers = (int(model[name]) for name in ("n_dims", "n_embd", "n_head", "n_layer"))
        self.trained_on, self.loops, self.examples = task, loops, tuple(range(1, points))
        self.combine, self.notes = LOOPS[model.get("loop_func") or next(iter(LOOPS))], tuple[str, ...]()
        biased = "read_in.bias" in weights
        with torch.device("cpu"):
            self.read_in = nn.Linear(weights["read_in.weight"].shape[1], width, bias=biased)
            self.position = nn.Parameter(torch.zeros_like(weights["position"]))
            self.decoder = Decoder(BlockShape(width, heads, fused=True), layers)
            self.read_out = nn.Linear(width, 1, bias=biased)
        self.load_state_dict(weights)
        self.eval().requires_grad_(False)

    @property
    def task(self) -> RegressionTask:
        """What it was trained on.

        Raises:
            EmulonError: That has no counterpart here.
        """
        if self.trained_on is None:
            raise EmulonError("the model was trained on a task that has no counterpart here; give one with --task")
        return self.trained_on

    @torch.no_grad()
    def predict_prefixes(
        self, xs: Float[Tensor, "batch points features"], ys: Float[Tensor, "batch answered"]
    ) -> Float[Tensor, "batch points"]:
        """ŷ_i at every x_i from the examples before it; the last target may be left out."""
        if xs.shape[-1] != self.features:
            raise BadShape(f"this model reads {self.features} features, and x has {xs.shape[-1]}")
        xs, ys = xs.float(), pad(ys.float(), (0, xs.shape[1] - ys.shape[1]))
        layout = LAYOUTS["tokens" if self.read_in.in_features > self.features else "tokens, narrow"]
        [tokens] = layout(xs[:, :-1], ys[:, :-1], xs[:, -1])
        return torch.cat([self._answers(part) for part in tokens.split(DATASETS)]).double()

    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        """The answer at x_query, having read (xs, ys)."""
        return self.predict_prefixes(torch.cat([xs, x_query.unsqueeze(-2)], dim=-2), ys)[..., -1]

    def _answers(self, tokens: Tensor) -> Tensor:
        embedded, position = self.read_in(tokens), self.position[: tokens.shape[1]]
        state = torch.full_like(embedded, float(self.combine is torch.mul))
        for _ in range(self.loops or 1):
            given = self.combine(state, embedded) if self.loops else embedded
            state = self.decoder(given + position)
        answers: Tensor = self.read_out(state[:, 0::2]).squeeze(-1)
        return answers


def is_public_checkpoint(path: Path) -> bool:
    """Whether a folder is a run of one of the three codes."""
    return (path / YAML).is_file() or ((path / JSON).is_file() and (path / PARAMETERS).is_file())


def load_public_checkpoint(folder: str | Path) -> CheckpointLearner:
    """Open a run of Garg et al.'s, Yang et al.'s or Raventós et al.'s code.

    Args:
        folder: Holds config.yaml with model.safetensors, state.pt or model_STEP.pt (the newest is taken); or
            config.json with params.npz.
    Returns:
        The trained model, a predictor with its `task`.
    Raises:
        NotAPredictor: The files are incomplete, damaged, or of another model.
    """
    folder = Path(folder)
    try:
        return _from_yaml(folder) if (folder / YAML).is_file() else _from_json(folder)
    except ImportError as missing:
        raise NotAPredictor(f"{folder} needs PyYAML; install it with: pip install 'emulon[hf]'") from missing
    except pickle.UnpicklingError as error:
        raise NotAPredictor(
            f"{folder} has a pickle of more than tensors, or damaged, which is not loaded; save its model_state_dict "
            f"as {SAFE} where you trust it"
        ) from error
    except (OSError, RuntimeError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, EmulonError):
            raise
        first = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise NotAPredictor(
            f"{folder} is no run of Garg et al.'s, Yang et al.'s or Raventós et al.'s code whose weights are those of "
            f"its configuration: {first}"
        ) from error


def _from_yaml(folder: Path) -> CheckpointLearner:
    """Garg et al.'s, or Yang et al.'s."""
    import yaml

    try:
        config = yaml.safe_load((folder / YAML).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    model, training = config["model"], config["training"]
    if model["family"] not in ("gpt2", "gpt2_loop"):
        raise NotAPredictor(f"{folder / YAML}: model.family is neither gpt2 nor gpt2_loop")
    features, options = model["n_dims"], training.get("task_kwargs") or {}
    sparsity = options.get("sparsity") or training.get("sparsity") or 3
    tasks: dict[str, RegressionTask] = {
        "linear_regression": Linear(features),
        "sparse_linear_regression": SparseLinear(features, nonzero=sparsity),
        "relu_2nn_regression": ReluNetwork(features, hidden=options.get("hidden_layer_size", 100)),
        "decision_tree": DecisionTree(features, depth=options.get("depth", 4)),
    }
    loops = training["curriculum"]["loops"]["end"] if model["family"] == "gpt2_loop" else 0
    points = min(model["n_positions"], training["curriculum"]["points"]["end"])
    weights, note = _state(folder)
    task = tasks.get(training.get("task") or training.get("task_name"))
    # nanoGPT's matrices are (out, in), transformers' are (in, out)
    nanogpt = any("_backbone.transformer." in name for name in weights)
    learner = CheckpointLearner(model, _renamed(weights, "" if nanogpt else "decoder"), points, task, loops)
    learner.notes = (note,) if note else ()
    return learner


def _from_json(folder: Path) -> CheckpointLearner:
    """Raventós et al.'s, all of whose matrices are (in, out)."""
    config = json.loads((folder / JSON).read_text(encoding="utf-8"))
    model, about = config["model"], config["task"]
    scales = {"noise": about.get("noise_scale", 0.5), "prior": about.get("task_scale", 1.0)}
    # Their vectors come from a generator of their own: beyond a few the tasks are as good as Gaussian.
    task = Linear(about["n_dims"], **scales) if about.get("n_tasks", 0) > MANY_TASKS else None
    with np.load(folder / PARAMETERS, allow_pickle=False) as found:
        weights = {name: torch.from_numpy(np.asarray(found[name], dtype=np.float32)) for name in found.files}
    renamed = _renamed(weights, "decoder|read_")
    return CheckpointLearner(model | {"n_dims": about["n_dims"]}, renamed, model["n_points"], task)


def _state(folder: Path) -> tuple[dict[str, Tensor], str]:
    """The weights by their own names, and a remark where they came from a pickle."""
    if (folder / SAFE).is_file():
        from safetensors.torch import load_file

        return load_file(folder / SAFE), ""
    steps = sorted(folder.glob("model_*.pt"), key=lambda path: int("0" + re.sub(r"\D", "", path.stem)))
    file = next((path for path in (folder / STATE, *reversed(steps)) if path.is_file()), None)
    if file is None:
        raise NotAPredictor(f"{folder} has a {YAML} and neither {SAFE} nor {STATE} nor model_STEP.pt")
    state = torch.load(file, map_location="cpu", weights_only=True)
    weights = state.get("model_state_dict", state.get("model", state))
    return weights, f"{file} is a pickle, of which tensors alone were read; safer beside it: {SAFE}"


def _renamed(weights: Mapping[str, Tensor], transposed: str) -> dict[str, Tensor]:
    """The weights by our names; matrices of (in, out) whose names begin so are transposed."""
    found = {}
    for name, part in weights.items():
        for pattern, ours in NAMES.items():
            name = re.sub(pattern, ours, name)
        found[name] = part.mT if transposed and part.ndim == 2 and re.match(transposed, name) else part
    found.pop("unused", None)
    return found


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
