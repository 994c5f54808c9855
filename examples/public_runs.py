"""Identify runs of three public codes: Garg et al. 2022, Yang et al. 2023 and Raventós et al. 2023.

`python examples/public_runs.py FOLDER` takes the options of `emulon identify`; in Python `identify(load(FOLDER))`.

All three (dtsip/in-context-learning, Leiay/looped_transformer, mansheej/icl-task-diversity) are GPT-2 blocks between a
linear map in and one out, over the prompt x₁, y₁, x₂, …; the answer at x_i is read at the token of x_i. They differ in
the names of the weights, in how a y becomes a token, and in loops:

- Garg et al.: config.yaml and state.pt, or model_STEP.pt. A y stands in the first coordinate of a token as wide as x.
- Yang et al.: the same files; model.family is gpt2_loop where one decoder is applied training.curriculum.loops.end
  times, to the sum (or product) of its last output and the prompt.
- Raventós et al.: config.json, and the parameters in params.npz, flattened, as this writes them in their environment:
  `numpy.savez("params.npz", **flax.traverse_util.flatten_dict(params, sep="/"))`. Tokens are one wider than x.

A .pt file is a pickle, which may run code when it is read: only tensors and plain values are accepted of it
(`weights_only`). A model.safetensors beside it is read instead.
"""

from __future__ import annotations

import json
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import pad

from emulon import cli
from emulon.core.errors import BadShape, EmulonError
from emulon.core.predictor import NotAPredictor
from emulon.identification import LAYOUTS
from emulon.identification.loading import LOADERS, Loader
from emulon.models.block import BlockShape, Decoder
from emulon.tasks import DecisionTree, Linear, RegressionTask, ReluNetwork, SparseLinear

# Prompts that the model reads at once.
PROMPTS = 256
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
    def predict_prefixes(self, xs: Tensor, ys: Tensor) -> Tensor:
        """ŷ_i at every x_i from the examples before it; the last target may be left out."""
        if xs.shape[-1] != self.features:
            raise BadShape(f"this model reads {self.features} features, and x has {xs.shape[-1]}")
        xs, ys = xs.float(), pad(ys.float(), (0, xs.shape[1] - ys.shape[1]))
        layout = LAYOUTS["tokens" if self.read_in.in_features > self.features else "tokens, narrow"]
        [tokens] = layout(xs[:, :-1], ys[:, :-1], xs[:, -1])
        return torch.cat([self._answers(part) for part in tokens.split(PROMPTS)]).double()

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


def is_public_run(path: Path) -> bool:
    """Whether a folder is a run of one of the three codes."""
    return (path / YAML).is_file() or ((path / JSON).is_file() and (path / PARAMETERS).is_file())


def load(folder: str | Path) -> CheckpointLearner:
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


if __name__ == "__main__":
    LOADERS.insert(0, Loader(is_public_run, load, lambda path, learner: learner.task))
    sys.exit(cli.main(["identify", *sys.argv[1:]]))
