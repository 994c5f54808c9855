"""Hugging Face's stock classes: models of given parameters, and what decides their answers, by Llama's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emulon.core.errors import EmulonError

Weights = dict[str, NDArray[Any]]
# What GPT-2 and GPT-NeoX call the entries of Llama's config.json.
ENTRIES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
    "layer_norm_eps": "rms_norm_eps",
}


class NeedsTransformers(EmulonError):
    """The export needs Hugging Face transformers, which is an extra.

    Cure: pip install 'emulon[hf]'.
    """


def stock_model(kind: str, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Any:
    """A frozen model without a head, in the dtype of its parameters.

    `kind` is its `model_type` (gpt2, gpt_neox, llama), `config` the entries of config.json that decide the function;
    an unembedding in `state` is left out. NeedsTransformers is raised where transformers is missing.
    """
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError as missing:
        raise NeedsTransformers(f"a {kind} needs transformers; install it with: pip install 'emulon[hf]'") from missing
    dtype = next(iter(state.values())).dtype
    entries = {name: entry for name, entry in config.items() if name != "model_type"}
    entries |= {"bos_token_id": None, "eos_token_id": None, "use_cache": False, "dtype": dtype}
    stock: Any = AutoModel  # its functions have no annotations
    with torch.device("cpu"):
        model = stock.from_config(AutoConfig.for_model(kind, **entries))
    model = model.to(dtype).eval()
    model.load_state_dict({name: part for name, part in state.items() if name != "lm_head.weight"})
    return model.requires_grad_(False)


@dataclass(frozen=True)
class Config:
    """What a config.json of a Llama or one of its relatives says that decides its answers.

    `scale` multiplies embeddings and `offset` is added to the weights of norms (Gemma); `head_norms` are those of
    queries and keys (Qwen3); `window` is how many tokens are seen (Mistral), 0 for all; `centred` norms subtract the
    mean, and MLPs beside them have no gate (GPT-2, GPT-NeoX); `rotated` is how many entries of a head are turned.
    """

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int
    rms_norm_eps: float
    rope_theta: float
    activation: str
    window: int
    head_norms: bool
    offset: float
    scale: float
    centred: bool
    rotated: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Config:
        """From the JSON of a Hugging Face folder."""
        config = {ENTRIES.get(name, name): entry for name, entry in config.items()}
        heads, width, kind = config["num_attention_heads"], config["hidden_size"], config["model_type"]
        size = config.get("head_dim") or width // heads
        rotary = config.get("rope_parameters", {"rope_theta": 1.0, "partial_rotary_factor": 0.0})
        return cls(
            width,
            heads,
            config.get("num_key_value_heads", heads),
            size,
            config["num_hidden_layers"],
            config["rms_norm_eps"],
            rotary["rope_theta"],
            activation=config["hidden_act"],
            window=config.get("sliding_window") or 0,
            head_norms=kind == "qwen3",
            offset=1.0 if kind == "gemma" else 0.0,
            scale=math.sqrt(width) if kind == "gemma" else 1.0,
            centred=kind in ("gpt2", "gpt_neox"),
            rotated=int(size * rotary.get("partial_rotary_factor", 1.0)),
        )


# What GPT-2 and GPT-NeoX call the parts of Llama's weights; queries, keys and values are one matrix there.
PARTS = {
    "gpt2": {
        "model.embed_tokens": "transformer.wte",
        "model.positions": "transformer.wpe",
        "model.norm": "transformer.ln_f",
        "model.layers.": "transformer.h.",
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        "self_attn.qkv_proj": "attn.c_attn",
        "self_attn.o_proj": "attn.c_proj",
        "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj",
    },
    "gpt_neox": {
        "model.embed_tokens": "gpt_neox.embed_in",
        "model.norm": "gpt_neox.final_layer_norm",
        "model.layers.": "gpt_neox.layers.",
        "self_attn.qkv_proj": "attention.query_key_value",
        "self_attn.o_proj": "attention.dense",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
        "lm_head": "embed_out",
    },
}


def with_stock_names(kind: str, weights: Weights, heads: int) -> Weights:
    """Weights by Llama's names, as the stock class of a `model_type` stores them.

    GPT-2's matrices are transposed, GPT-NeoX's queries, keys and values stand head by head; kinds that are not in
    `PARTS` have Llama's names.
    """
    if kind not in PARTS:
        return weights
    found = {}
    for name, array in weights.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            parts = [weights[name.replace("q_proj", f"{each}_proj")] for each in "qkv"]
            if kind == "gpt_neox":  # (heads, 3, size, …)
                parts = [part.reshape(heads, 1, -1, *part.shape[1:]) for part in parts]
                parts = [np.concatenate(parts, axis=1).reshape(-1, *array.shape[1:])]
            name, array = name.replace("q_proj", "qkv_proj"), np.concatenate(parts)
        turned = kind == "gpt2" and "layers" in name
        for ours, theirs in PARTS[kind].items():
            name = name.replace(ours, theirs)
        found[name] = np.ascontiguousarray(array.T if turned else array)
    return found


def with_llama_names(kind: str, weights: Mapping[str, NDArray[Any]], heads: int) -> Weights:
    """The inverse of `with_stock_names`."""
    found = {}
    for name, array in weights.items():
        for ours, theirs in PARTS.get(kind, {}).items():
            name = name.replace(theirs, ours)
        if kind == "gpt2" and "layers" in name:
            array = array.T
        if "qkv_proj" not in name:
            found[name] = array
            continue
        parts = array.reshape(3, -1, *array.shape[1:])
        if kind == "gpt_neox":
            parts = array.reshape(heads, 3, -1, *array.shape[1:]).swapaxes(0, 1).reshape(parts.shape)
        found |= {name.replace("qkv", each): part for each, part in zip("qkv", parts, strict=True)}
    return found
