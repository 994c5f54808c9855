"""A folder of a Llama, GPT-2 or GPT-NeoX as one GGUF file, for llama.cpp, which needs no tokenizer but token ids.

Needs the package gguf.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from emulon.core.errors import EmulonError
from emulon.core.files import read_json
from emulon.machine.targets.stock import Config, with_llama_names

KINDS = ("F32", "F16", "BF16", "Q8_0")
# llama.cpp's words for `model_type` and for the parts of a name.
FAMILIES = {"llama": "llama", "gpt2": "gpt2", "gpt_neox": "gptneox"}
NAMES = {
    "model.layers.": "blk.",
    "model.embed_tokens": "token_embd",
    "model.positions": "position_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "_proj": "",
}


def write_gguf(folder: Path, path: Path, kind: str = "F32") -> None:
    """Write the Hugging Face folder of a Llama, GPT-2 or GPT-NeoX as a file for llama.cpp.

    Matrices are stored as `kind`, one of `KINDS`, norms in float32. Another kind or model raises EmulonError.
    """
    import gguf

    if kind not in KINDS:
        raise EmulonError(f"GGUF files are written as {', '.join(KINDS)}, not as {kind!r}")
    try:
        config = read_json(folder / "config.json")
        sizes, family = Config.of(config), FAMILIES[config["model_type"]]
        stored = {name: each.float().numpy() for name, each in load_file(folder / "model.safetensors").items()}
        weights = with_llama_names(config["model_type"], stored, sizes.num_attention_heads)
        facts = {
            "add_context_length": config.get("n_positions") or config["max_position_embeddings"],
            "add_embedding_length": sizes.hidden_size,
            "add_block_count": sizes.num_hidden_layers,
            "add_feed_forward_length": len(weights["model.layers.0.mlp.up_proj.weight"]),
            "add_head_count": sizes.num_attention_heads,
            "add_head_count_kv": sizes.num_key_value_heads,
            "add_key_length": sizes.head_dim,
            "add_value_length": sizes.head_dim,
            "add_layer_norm_eps" if sizes.centred else "add_layer_norm_rms_eps": sizes.rms_norm_eps,
            "add_vocab_size": config["vocab_size"],
        }
        if sizes.rotated:
            facts |= {"add_rope_dimension_count": sizes.rotated, "add_rope_freq_base": sizes.rope_theta}
        if family == "gptneox":
            facts["add_parallel_residual"] = config["use_parallel_residual"]
    except (ValueError, KeyError, OSError) as error:
        raise EmulonError(f"{folder} is not the folder of a Llama, GPT-2 or GPT-NeoX checkpoint: {error}") from None
    beside = path.with_name(f".{path.name}.part")
    writer = gguf.GGUFWriter(str(beside), family)
    for name, fact in facts.items():
        getattr(writer, name)(fact)
    writer.add_tokenizer_model("none")
    for name, array in _renamed(weights, sizes):
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


def _renamed(weights: dict[str, Any], sizes: Config) -> list[tuple[str, Any]]:
    """llama.cpp's names; a Llama's rotary pairs stand beside each other there, and queries, keys and values are one."""
    turned = {"self_attn.q_proj": sizes.num_attention_heads, "self_attn.k_proj": sizes.num_key_value_heads}
    found = []
    for name, array in weights.items():
        part = name.removeprefix("model.layers.").partition(".")[2].rpartition(".")[0]
        if sizes.centred and part in ("self_attn.k_proj", "self_attn.v_proj"):
            continue
        if sizes.centred and part == "self_attn.q_proj":
            array = np.concatenate([weights[name.replace("q_proj", f"{each}_proj")] for each in "qkv"])
            name = name.replace("q_proj", "qkv")
        elif part in turned:
            array = array.reshape(turned[part], 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        found.append((name, array))
    return found
