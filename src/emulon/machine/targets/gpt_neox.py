"""A compiled program's parameters as a `transformers.GPTNeoXModel`, whose blocks compute what GPT-2's do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from emulon.machine.normalisation import EPSILON
from emulon.machine.targets.gpt2 import NeedsTransformers

# Places of a head that rotary embeddings turn; no head in use has anything there.
ROTATED = 2


def load_neox(state: Mapping[str, Tensor], heads: int, unembedding: str) -> Any:
    """A `transformers.GPTNeoXModel` with these parameters; all sizes but the number of heads are theirs."""
    try:
        from transformers import GPTNeoXConfig, GPTNeoXModel
    except ImportError as missing:
        raise NeedsTransformers("a GPT-NeoX needs transformers; install it with: pip install 'emulon[hf]'") from missing
    dtype = state["embed_in.weight"].dtype
    config = GPTNeoXConfig(
        **neox_config(state, heads), bos_token_id=None, eos_token_id=None, use_cache=False, dtype=dtype
    )
    with torch.device("cpu"):
        model: Any = GPTNeoXModel(config)  # type: ignore[no-untyped-call]  # transformers leaves it unannotated
    model = model.to(dtype).eval()
    model.load_state_dict({name: part for name, part in state.items() if name != unembedding})
    return model.requires_grad_(False)


def neox_config(state: Mapping[str, Tensor], heads: int) -> dict[str, Any]:
    """What of a `GPTNeoXConfig` decides the function that these parameters compute."""
    tokens, width = state["embed_in.weight"].shape
    # Between whole numbers of places, so that rounding cannot take one away.
    turned = (ROTATED + 0.5) * heads / width
    return {
        "vocab_size": tokens,
        "hidden_size": width,
        "intermediate_size": state["layers.0.mlp.dense_h_to_4h.weight"].shape[0],
        "num_hidden_layers": sum(name.endswith("dense_h_to_4h.weight") for name in state),
        "num_attention_heads": heads,
        "hidden_act": "gelu",
        "max_position_embeddings": tokens,
        "layer_norm_eps": EPSILON,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": turned},
        "attention_bias": True,
        "use_parallel_residual": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
    }
