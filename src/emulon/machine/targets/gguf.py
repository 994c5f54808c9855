"""A Llama folder as one GGUF file, for llama.cpp. Needs the package gguf; token ids are its only tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from emulon.core.errors import EmulonError
from emulon.core.files import read_json

KINDS = ("F32", "F16", "BF16", "Q8_0")


def write_gguf(folder: Path, path: Path, kind: str = "F32") -> None:
    """Write a checkpoint for llama.cpp.

    Args:
        folder: A Hugging Face folder of a Llama: config.json and model.safetensors.
        path: The file to write.
        kind: How matrices are stored: one of `KINDS`. Norms are float32.
    Raises:
        EmulonError: There is no such kind, or the folder does not hold a Llama.

    Example:
        >>> write_gguf(Path("model"), Path("model/model-F32.gguf"))
    """
    import gguf

    if kind not in KINDS:
        raise EmulonError(f"GGUF files are written as {', '.join(KINDS)}, not as {kind!r}")
    try:
        config = read_json(folder / "config.json")
        weights = {name: each.float().numpy() for name, each in load_file(folder / "model.safetensors").items()}
        heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        facts = {
            "add_context_length": config["max_position_embeddings"],
            "add_embedding_length": config["hidden_size"],
            "add_block_count": config["num_hidden_layers"],
            "add_feed_forward_length": config["intermediate_size"],
            "add_head_count": heads,
            "add_head_count_kv": groups,
            "add_key_length": size,
            "add_value_length": size,
            "add_rope_dimension_count": size,
            "add_rope_freq_base": config["rope_parameters"]["rope_theta"],
            "add_layer_norm_rms_eps": config["rms_norm_eps"],
            "add_vocab_size": config["vocab_size"],
        }
    except (ValueError, KeyError, OSError) as error:
        raise EmulonError(f"{folder} is not the folder of a Llama checkpoint: {error}") from None
    beside = path.with_name(f".{path.name}.part")
    writer = gguf.GGUFWriter(str(beside), "llama")
    for name, fact in facts.items():
        getattr(writer, name)(fact)
    writer.add_tokenizer_model("none")
    for name, array in _renamed(weights, config["num_hidden_layers"], heads, groups):
        if kind == "F32" or array.ndim == 1:
            writer.add_tensor(name, np.ascontiguousarray(array, dtype=np.float32))
        else:
            quantised = getattr(gguf.GGMLQuantizationType, kind)
            writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(array), quantised), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    beside.replace(path)


def _renamed(weights: dict[str, Any], layers: int, heads: int, groups: int) -> list[tuple[str, Any]]:
    """llama.cpp's names; the two halves of a rotary pair stand beside each other there."""
    whole = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
    }
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    found = [(f"{ours}.weight", weights[f"{theirs}.weight"]) for ours, theirs in whole.items()]
    turned = {"attn_q": heads, "attn_k": groups}
    for layer in range(layers):
        for ours, theirs in parts.items():
            array = weights[f"model.layers.{layer}.{theirs}.weight"]
            if ours in turned:
                array = array.reshape(turned[ours], 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            found.append((f"blk.{layer}.{ours}.weight", array))
    return found
