"""A token program as a stock `LlamaForCausalLM`: configuration, float32 weights, nothing of its modelling code touched.

RMSNorm is the identity to the last bit: the width is 4^k, one slot holds 2^50 at every token, and everything else is so
small beside it that the mean of squares is 2^100/4^k exactly. A gain of 2^50/2^k undoes the division, and one of
1/2^k makes the pad a constant 1. Products are pairs of gated units, silu(z)·b − silu(−z)·b = z·b; a factor 2^20 on z
keeps the gates open or shut. All constants are rounded to float32 once; sines and cosines come from balls.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from emulon.core.files import write_atomically, write_json
from emulon.machine.token_layers import (
    HEAD_WIDTH,
    ONE,
    THETA,
    Attention,
    TokenLayer,
    TokenLayout,
    Units,
    require_start,
    scheduled,
)
from emulon.machine.token_program import SAID, START, TokenProgram

PAD = 2.0**50
UNITS_STEP = 32


@dataclass(frozen=True)
class LlamaProgram:
    """A compiled token program: its layers, and the model's configuration and parameters.

    Attributes:
        program: What was compiled.
        layout: Where its registers stand.
        layers: Which instructions each block executes.
        heads: How many heads every block has.

    Example:
        >>> compiled = compile_llama(program)
        >>> model = LlamaForCausalLM(LlamaConfig(**compiled.config))
        >>> model.load_state_dict(compiled.state)
    """

    program: TokenProgram
    layout: TokenLayout
    layers: tuple[TokenLayer, ...]
    heads: int

    @cached_property
    def units(self) -> int:
        """The most that a layer needs, rounded up."""
        most = max(len(Units(self.layout, layer.products).gate) for layer in self.layers)
        return max(1, math.ceil(most / UNITS_STEP)) * UNITS_STEP

    @property
    def config(self) -> dict[str, Any]:
        """The fields of a `LlamaConfig`, as `config.json` has them."""
        numbers = self.program.numbers
        special = {"bos": START, "eos": "</s>", "pad": "<pad>"}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(self.program.words),
            "hidden_size": self.layout.width,
            "intermediate_size": self.units,
            "num_hidden_layers": len(self.layers),
            "num_attention_heads": self.heads,
            "num_key_value_heads": 1,
            "head_dim": HEAD_WIDTH,
            "hidden_act": "silu",
            "max_position_embeddings": self.program.context,
            "rms_norm_eps": 1e-6,
            "rope_theta": THETA,
            "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "use_cache": True,
            "dtype": "float32",
            **{f"{name}_token_id": numbers[word] for name, word in special.items() if word in numbers},
        }

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """Every parameter by its name in `LlamaForCausalLM`, in float32."""
        layout, root = self.layout, math.isqrt(self.layout.width)
        gain = torch.full((layout.width,), PAD / root, dtype=torch.float64, device="cpu")
        gain[layout.slots[ONE]] = 1 / root
        state = {
            "model.embed_tokens.weight": layout.embedding(PAD),
            "model.norm.weight": gain,
            "lm_head.weight": layout.unembedding(-SAID),
        }
        for number, layer in enumerate(self.layers):
            query, key, value, output = Attention(layout, layer.reads).weights(self.heads)
            gate, up, down = Units(layout, layer.products).weights(self.units)
            parts = {
                "self_attn.q_proj": query,
                "self_attn.k_proj": key,
                "self_attn.v_proj": value,
                "self_attn.o_proj": output,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": down,
                "input_layernorm": gain,
                "post_attention_layernorm": gain,
            }
            state |= {f"model.layers.{number}.{name}.weight": part for name, part in parts.items()}
        return {name: part.float().contiguous() for name, part in state.items()}

    def __str__(self) -> str:
        lines = [
            f"{self.program.name}: LlamaForCausalLM, {len(self.layers)} layers, width {self.layout.width} "
            f"({self.layout.slots.width} slots in use), {self.heads} heads of {HEAD_WIDTH}, {self.units} units"
        ]
        for number, layer in enumerate(self.layers, start=1):
            lines += [f"  layer {number}", *(f"    {one}" for one in (*layer.reads, *layer.products))]
        return "\n".join(lines)


def compile_llama(program: TokenProgram) -> LlamaProgram:
    """Lay the registers out, schedule the instructions.

    Args:
        program: A token program.
    Returns:
        The compiled program; its `config` and `state` are a stock model's.
    Raises:
        BadProgram: It says nothing, or something of it does not fit.
    """
    require_start(program)
    layout = TokenLayout(program)
    layers, heads = scheduled(layout)
    return LlamaProgram(program, layout, tuple(layers), heads)


def write_llama(compiled: LlamaProgram, folder: Path) -> str:
    """Write `config.json`, `generation_config.json` and `model.safetensors`, which Hugging Face opens.

    Args:
        compiled: A compiled token program.
        folder: Where to write; it exists.
    Returns:
        The sha256 of the weights' file, the same on every machine.
    Raises:
        CannotWrite: A file could not be written.
    """
    content, config = serialised(compiled.state), compiled.config
    tokens = {name: number for name, number in config.items() if name.endswith("_token_id")}
    write_json(folder / "config.json", config)
    write_json(
        folder / "generation_config.json", {**tokens, "do_sample": False, "max_length": compiled.program.context}
    )
    write_atomically(folder / "model.safetensors", content)
    return hashlib.sha256(content).hexdigest()


def serialised(state: Mapping[str, Tensor]) -> bytes:
    """Float32 tensors as a safetensors file, in the order of their names."""
    return save({name: part.detach().cpu().contiguous() for name, part in state.items()}, {"format": "pt"})
