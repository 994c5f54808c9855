"""Checkpoints in the layout of Garg et al. 2022's public code (dtsip/in-context-learning).

A run's folder holds config.yaml and state.pt, whose `model_state_dict` has a GPT-2 under `_backbone`, a linear map in
and one out; `model_STEP.pt` are the weights alone. The prompt is x₁, y₁, x₂, …: a y is a token with y in its first
coordinate and zeros behind it, and the answer at x_i is read at the token of x_i.

A .pt file is a pickle, which may run code when it is read. Only tensors and plain values are accepted of it
(`weights_only`), and `convert` writes what is needed as safetensors, which then is read instead.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.core.errors import BadShape, EmulonError
from emulon.core.files import write_atomically
from emulon.core.predictor import NotAPredictor
from emulon.machine.targets.gpt2 import NeedsTransformers
from emulon.tasks import DecisionTree, Linear, RegressionTask, ReluNetwork, SparseLinear

CONFIG, STATE, SAFE = "config.yaml", "state.pt", "model.safetensors"
SIZES = ("n_dims", "n_positions", "n_embd", "n_layer", "n_head")
# Masks that older releases of transformers keep among the weights.
MASKS = re.compile(r"\.attn\.(masked_)?bias$")
PROMPTS = 256


class GargLearner(nn.Module):
    """The trained model as a predictor. `notes` is what a user should be told about its file.

    It is asked about at most as many points as it was trained on, where the configuration says how many.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        try:
            from transformers import GPT2Config, GPT2Model
        except ImportError as missing:
            raise NeedsTransformers(
                "Garg et al.'s models need transformers; install it with: pip install 'emulon[hf]'"
            ) from missing
        self.config, sizes = config, config["model"]
        self.features: int = sizes["n_dims"]
        self.notes: tuple[str, ...] = ()
        shape = GPT2Config(
            n_positions=2 * sizes["n_positions"],
            n_embd=sizes["n_embd"],
            n_layer=sizes["n_layer"],
            n_head=sizes["n_head"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
        with torch.device("cpu"):
            self._backbone: Any = GPT2Model(shape)  # type: ignore[no-untyped-call]  # transformers leaves it unannotated
        self._read_in = nn.Linear(self.features, sizes["n_embd"], device="cpu")
        self._read_out = nn.Linear(sizes["n_embd"], 1, device="cpu")

    @property
    def examples(self) -> tuple[int, ...]:
        trained = _inside(self.config, "training", "curriculum", "points", "end")
        points: int = self.config["model"]["n_positions"]
        return tuple(range(1, min(points, trained or points)))

    @property
    def task(self) -> RegressionTask:
        """What it was trained on."""
        name, options = _inside(self.config, "training", "task"), _inside(self.config, "training", "task_kwargs") or {}
        if name == "linear_regression":
            return Linear(self.features)
        if name == "sparse_linear_regression":
            return SparseLinear(self.features, nonzero=options.get("sparsity", 3))
        if name == "relu_2nn_regression":
            return ReluNetwork(self.features, hidden=options.get("hidden_layer_size", 100))
        if name == "decision_tree":
            return DecisionTree(self.features, depth=options.get("depth", 4))
        raise EmulonError(f"{CONFIG} names the task {name!r}, which has no counterpart here; say one with --task")

    @torch.no_grad()
    def predict_prefixes(
        self, xs: Float[Tensor, "batch points features"], ys: Float[Tensor, "batch answered"]
    ) -> Float[Tensor, "batch points"]:
        """ŷ_i at every x_i from the examples before it; the last target may be left out."""
        if xs.shape[-1] != self.features:
            raise BadShape(f"this model reads {self.features} features, and x has {xs.shape[-1]}; choose such a task")
        xs, ys = xs.float(), torch.nn.functional.pad(ys.float(), (0, xs.shape[1] - ys.shape[1]))
        targets = torch.nn.functional.pad(ys.unsqueeze(-1), (0, self.features - 1))
        tokens = torch.stack([xs, targets], dim=2).flatten(1, 2)[:, :-1]
        said = [self._answers(part) for part in tokens.split(PROMPTS)]
        return torch.cat(said).double()

    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        return self.predict_prefixes(torch.cat([xs, x_query.unsqueeze(-2)], dim=-2), ys)[..., -1]

    def _answers(self, tokens: Tensor) -> Tensor:
        states = self._backbone(inputs_embeds=self._read_in(tokens)).last_hidden_state
        answers: Tensor = self._read_out(states[:, 0::2]).squeeze(-1)
        return answers


def is_garg(path: Path) -> bool:
    return (path / CONFIG).is_file()


def load_garg(folder: str | Path) -> GargLearner:
    """The model of a run's folder: from model.safetensors, or else from state.pt or the newest model_STEP.pt."""
    folder = Path(folder)
    learner = GargLearner(_config(folder / CONFIG))
    weights, notes = _weights(folder)
    known = {name: part for name, part in weights.items() if not MASKS.search(name)}
    try:
        learner.load_state_dict(known)
    except (RuntimeError, AttributeError) as error:
        first = " ".join(str(error).split())[:160]
        raise NotAPredictor(f"the weights in {folder} are not those of its {CONFIG}: {first}") from error
    learner.notes = notes
    return learner.eval().requires_grad_(False)


def convert(folder: str | Path) -> Path:
    """Writes the weights of a run's folder as model.safetensors, beside the pickle."""
    from safetensors.torch import save

    path = Path(folder) / SAFE
    weights = {name: part.contiguous().clone() for name, part in load_garg(folder).state_dict().items()}
    write_atomically(path, save(weights))
    return path


def _config(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as missing:
        raise NeedsTransformers(f"{path} needs PyYAML; install it with: pip install 'emulon[hf]'") from missing
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NotAPredictor(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if _inside(config, "model", "family") != "gpt2":
        raise NotAPredictor(f"{path} does not describe a model of Garg et al.'s code: model.family is not gpt2")
    for name in SIZES:
        size = _inside(config, "model", name)
        if not isinstance(size, int) or size < 1:
            raise NotAPredictor(f"{path}: model.{name} is {size!r}, not a whole number, 1 or more")
    read: dict[str, Any] = config
    return read


def _weights(folder: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    if (folder / SAFE).is_file():
        from safetensors.torch import load_file

        return load_file(folder / SAFE), ()
    steps = sorted(folder.glob("model_*.pt"), key=lambda path: int("0" + re.sub(r"\D", "", path.stem)))
    found = [path for path in (folder / STATE, *reversed(steps)) if path.is_file()]
    if not found:
        raise NotAPredictor(f"{folder} has a {CONFIG} and neither {SAFE} nor {STATE} nor model_STEP.pt")
    try:
        state = torch.load(found[0], map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise NotAPredictor(
            f"{found[0]} is a pickle of more than tensors, or damaged, and is not loaded; save its model_state_dict "
            f"as {SAFE} where you trust it"
        ) from error
    weights = state.get("model_state_dict", state) if isinstance(state, dict) else state
    if not isinstance(weights, dict) or not all(isinstance(part, Tensor) for part in weights.values()):
        raise NotAPredictor(f"{found[0]} holds no state dict")
    convert = f"emulon.identification.adapters.convert({str(folder)!r})"
    return weights, (f"{found[0]} is a pickle, of which tensors alone were read; {convert} makes safetensors of it",)


def _inside(config: Any, *keys: str) -> Any:
    """What is there under these keys; None where something on the way is missing."""
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config
