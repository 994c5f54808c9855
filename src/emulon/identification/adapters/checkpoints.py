"""Checkpoints in the layouts of three public codes: Garg et al. 2022 (dtsip/in-context-learning), Yang et al. 2023
(Leiay/looped_transformer) and Raventós et al. 2023 (mansheej/icl-task-diversity).

All three are GPT-2 blocks between a linear map in and one out, over the prompt x₁, y₁, x₂, …; the answer at x_i is read
at the token of x_i. They differ in the names of the weights, in how a y becomes a token, and in loops:

- Garg et al.: config.yaml and state.pt, or model_STEP.pt. A y stands in the first coordinate of a token as wide as x.
- Yang et al.: the same files; model.family is gpt2_loop where one decoder is applied training.curriculum.loops.end
  times, to the sum (or product) of its last output and the prompt.
- Raventós et al.: config.json, and the parameters in params.npz, flattened, as this writes them in their environment:
  `numpy.savez("params.npz", **flax.traverse_util.flatten_dict(params, sep="/"))`. Tokens are one wider than x.

A .pt file is a pickle, which may run code when it is read. Only tensors and plain values are accepted of it
(`weights_only`), and `convert` writes its weights as safetensors, which then are read instead.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from emulon.core.errors import BadShape, EmulonError
from emulon.core.files import write_atomically
from emulon.core.predictor import NotAPredictor
from emulon.models.block import BlockShape, Decoder
from emulon.tasks import DecisionTree, Linear, RegressionTask, ReluNetwork, SparseLinear, interleave

YAML, JSON, STATE, SAFE, PARAMETERS = "config.yaml", "config.json", "state.pt", "model.safetensors", "params.npz"
ADDING, MULTIPLYING = "z=f(x+z)", "z=f(x*z)"
PROMPTS = 256
# Weights of GPT-2 by their names in the three codes, and here. What is a matrix of (in, out) is transposed.
BLOCK = {"ln_1": "attention_norm", "attn.c_attn": "attention.to_qkv", "attn.c_proj": "attention.merge"}
BLOCK |= {"ln_2": "mlp_norm", "mlp.c_fc": "widen", "mlp.c_proj": "narrow"}
# Masks that older releases of transformers keep among the weights, and word embeddings, which no prompt uses.
UNUSED = re.compile(r"\.attn\.(masked_)?bias$|\.wte\.weight$")


@dataclass(frozen=True)
class CheckpointShape:
    """Sizes and layout of one model, from its configuration."""

    features: int
    points: int
    trained_points: int
    width: int
    layers: int
    heads: int
    wide_tokens: bool = False
    """a y has a coordinate of its own, before those of x"""
    loops: int = 0
    multiplying: bool = False
    """a loop is given the product of its last output and the prompt instead of the sum"""


class CheckpointLearner(nn.Module):
    """A trained model of one of the three codes, as a predictor.

    Attributes:
        shape: Its sizes and layout.
        task: What it was trained on; None where that has no counterpart here.
        notes: Remarks on its files for the user.
    """

    def __init__(self, shape: CheckpointShape, positions: int, biased: bool, task: RegressionTask | None) -> None:
        super().__init__()
        self.shape, self.trained_on = shape, task
        self.notes: tuple[str, ...] = ()
        width = shape.width
        with torch.device("cpu"):
            self.read_in = nn.Linear(shape.features + shape.wide_tokens, width, bias=biased)
            self.position = nn.Parameter(torch.zeros(positions, width, device="cpu"))
            self.decoder = Decoder(BlockShape(width=width, heads=shape.heads, fused=True), shape.layers)
            self.read_out = nn.Linear(width, 1, bias=biased)

    @property
    def examples(self) -> tuple[int, ...]:
        """At most as many as it was trained on, where the configuration says how many."""
        return tuple(range(1, min(self.shape.points, self.shape.trained_points)))

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
        if xs.shape[-1] != self.shape.features:
            raise BadShape(f"this model reads {self.shape.features} features, and x has {xs.shape[-1]}")
        xs, ys = xs.float(), pad(ys.float(), (0, xs.shape[1] - ys.shape[1]))
        if self.shape.wide_tokens:
            tokens = interleave(xs, ys)
        else:
            tokens = torch.stack([xs, pad(ys.unsqueeze(-1), (0, xs.shape[-1] - 1))], dim=2).flatten(1, 2)[:, :-1]
        return torch.cat([self._answers(part) for part in tokens.split(PROMPTS)]).double()

    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        """The answer at x_query, having read (xs, ys)."""
        return self.predict_prefixes(torch.cat([xs, x_query.unsqueeze(-2)], dim=-2), ys)[..., -1]

    def _answers(self, tokens: Tensor) -> Tensor:
        embedded, position = self.read_in(tokens), self.position[: tokens.shape[1]]
        if self.shape.loops:
            product = self.shape.multiplying
            state = torch.full_like(embedded, float(product))
            for _ in range(self.shape.loops):
                state = self.decoder((state * embedded if product else state + embedded) + position)
        else:
            state = self.decoder(embedded + position)
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
    if (folder / YAML).is_file():
        shape, task = _from_yaml(_yaml(folder / YAML))
        weights, notes = _weights(folder)
    else:
        shape, task = _from_json(folder / JSON)
        weights, notes = _parameters(folder / PARAMETERS), ()
    try:
        ours = _renamed(weights, shape.width)
        learner = CheckpointLearner(shape, len(ours["position"]), "read_in.bias" in ours, task)
        learner.load_state_dict(ours)
    except (RuntimeError, AttributeError, KeyError) as error:
        first = " ".join(str(error).split())[:160]
        raise NotAPredictor(f"the weights in {folder} are not those of its configuration: {first}") from error
    learner.notes = notes
    return learner.eval().requires_grad_(False)


def convert(folder: str | Path) -> Path:
    """Write the weights of a run with a pickle as model.safetensors, beside the pickle.

    Args:
        folder: A run of Garg et al.'s or Yang et al.'s code.
    Returns:
        The new file.
    """
    from safetensors.torch import save

    load_public_checkpoint(folder)  # refuses what is not such a run
    weights, _ = _weights(Path(folder))
    path = Path(folder) / SAFE
    write_atomically(path, save({name: part.contiguous().clone() for name, part in weights.items()}))
    return path


def _yaml(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as missing:
        raise NotAPredictor(f"{path} needs PyYAML; install it with: pip install 'emulon[hf]'") from missing
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NotAPredictor(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if _inside(config, "model", "family") not in ("gpt2", "gpt2_loop"):
        raise NotAPredictor(
            f"{path} does not describe a model of Garg et al.'s or Yang et al.'s code: model.family is neither gpt2"
            " nor gpt2_loop"
        )
    read: dict[str, Any] = config
    return read


def _from_yaml(config: dict[str, Any]) -> tuple[CheckpointShape, RegressionTask | None]:
    names = ("n_dims", "n_positions", "n_embd", "n_layer", "n_head")
    features, points, width, layers, heads = _sizes(config, YAML, names)
    looped = _inside(config, "model", "family") == "gpt2_loop"
    loops = _inside(config, "training", "curriculum", "loops", "end") if looped else 0
    function = _inside(config, "model", "loop_func") or ADDING
    if function not in (ADDING, MULTIPLYING) or not isinstance(loops, int) or loops < looped:
        raise NotAPredictor(
            f"{YAML}: a looped model needs training.curriculum.loops.end, and {ADDING} or {MULTIPLYING}"
        )
    trained = _inside(config, "training", "curriculum", "points", "end") or points
    name = _inside(config, "training", "task") or _inside(config, "training", "task_name")
    options = dict(_inside(config, "training", "task_kwargs") or {})
    sparsity = options.get("sparsity") or _inside(config, "training", "sparsity") or 3
    tasks: dict[str, RegressionTask] = {
        "linear_regression": Linear(features),
        "sparse_linear_regression": SparseLinear(features, nonzero=sparsity),
        "relu_2nn_regression": ReluNetwork(features, hidden=options.get("hidden_layer_size", 100)),
        "decision_tree": DecisionTree(features, depth=options.get("depth", 4)),
    }
    multiplying = looped and function == MULTIPLYING
    shape = CheckpointShape(features, points, trained, width, layers, heads, loops=loops, multiplying=multiplying)
    return shape, tasks.get(name)


def _from_json(path: Path) -> tuple[CheckpointShape, RegressionTask | None]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise NotAPredictor(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    points, width, layers, heads = _sizes(config, JSON, ("n_points", "n_embd", "n_layer", "n_head"))
    described = _inside(config, "task") or {}
    features = described.get("n_dims")
    if _inside(config, "model", "name") != "transformer" or not isinstance(features, int):
        raise NotAPredictor(f"{path} does not describe a transformer of Raventós et al.'s code")
    scales = {"noise": described.get("noise_scale", 0.5), "prior": described.get("task_scale", 1.0)}
    # Their vectors come from a generator of their own: beyond a few the tasks are as good as Gaussian.
    task = Linear(features, **scales) if described.get("n_tasks", 0) > MANY_TASKS else None
    return CheckpointShape(features, points, points, width, layers, heads, wide_tokens=True), task


# No dataset here distinguishes so many task vectors from Gaussian ones.
MANY_TASKS = 2**14


def _sizes(config: Any, file: str, names: tuple[str, ...]) -> list[int]:
    found = {name: _inside(config, "model", name) for name in names}
    for name, size in found.items():
        if not isinstance(size, int) or size < 1:
            raise NotAPredictor(f"{file}: model.{name} is {size!r}, not a whole number, 1 or more")
    return list(found.values())


def _weights(folder: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    if (folder / SAFE).is_file():
        from safetensors.torch import load_file

        return load_file(folder / SAFE), ()
    steps = sorted(folder.glob("model_*.pt"), key=lambda path: int("0" + re.sub(r"\D", "", path.stem)))
    found = [path for path in (folder / STATE, *reversed(steps)) if path.is_file()]
    if not found:
        raise NotAPredictor(f"{folder} has a {YAML} and neither {SAFE} nor {STATE} nor model_STEP.pt")
    try:
        state = torch.load(found[0], map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise NotAPredictor(
            f"{found[0]} is a pickle of more than tensors, or damaged, and is not loaded; save its model_state_dict "
            f"as {SAFE} where you trust it"
        ) from error
    weights = state.get("model_state_dict", state.get("model", state)) if isinstance(state, dict) else state
    if not isinstance(weights, dict) or not all(isinstance(part, Tensor) for part in weights.values()):
        raise NotAPredictor(f"{found[0]} holds no state dict")
    convert = f"emulon.identification.adapters.checkpoints.convert({str(folder)!r})"
    return weights, (f"{found[0]} is a pickle, of which tensors alone were read; {convert} makes safetensors of it",)


def _parameters(path: Path) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: torch.from_numpy(np.asarray(found[name], dtype=np.float32)) for name in found.files}
    except (OSError, ValueError, pickle.UnpicklingError) as error:
        raise NotAPredictor(f"{path} holds no plain arrays: {' '.join(str(error).split())[:160]}") from error


def _renamed(weights: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """The weights under the names of `CheckpointLearner`; flax's and transformers' matrices are (in, out)."""
    found = {}
    # nanoGPT's names begin with transformer., and its matrices are (out, in).
    transposed = not any("_backbone.transformer." in name for name in weights)
    for name, part in weights.items():
        if UNUSED.search(name):
            continue
        short = name.replace("/", ".").removeprefix("_orig_mod.").replace("_backbone.transformer.", "_backbone.")
        short = re.sub(r"^_h\.hs_(\d+)\.", r"_backbone.h.\1.", short)
        short = re.sub(r"\.(kernel|scale|embedding)$", ".weight", re.sub(r"^_h\.", "_backbone.", short))
        short = re.sub(r"^_(read_)?(in|out)\.", r"read_\2.", short)
        if name.endswith(("_in/kernel", "_out/kernel")):
            part = part.mT
        if block := re.fullmatch(r"_backbone\.h\.(\d+)\.(.*)\.(weight|bias)", short):
            number, module, kind = block.groups()
            part = part.mT if part.ndim == 2 and transposed else part
            short = f"decoder.blocks.{number}.{BLOCK.get(module, module)}.{kind}"
        short = short.replace("_backbone.ln_f.", "decoder.last_norm.")
        found["position" if short == "_backbone.wpe.weight" else short] = part
    return found


def _inside(config: Any, *keys: str) -> Any:
    """What is there under these keys; None where something on the way is missing."""
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config
