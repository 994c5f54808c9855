"""A canary: a tiny stock Llama, or a relative of it, with named registers, and the prompts that it is asked.

Its weights are written number by number. The LM head is the identity on the registers, so logit i is entry i of the
normalised stream after the last token: an engine shows every register without hooks. Each probe writes its register
once, in a known layer, by one operation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulon.core.files import make_folder, write_atomically, write_json

VOCABULARY, WIDTH, INNER, LAYERS, HEADS = 260, 256, 32, 2, 16
EPSILON = 2.0**-20
Row = NDArray[Any]
Entry = int | float | list[float] | Row


@dataclass(frozen=True)
class Probe:
    """One register and what writes it.

    Attributes:
        name: The register's name.
        operation: What a wrong value means, in words.
        layer: The layer that writes it, from 1.
    """

    name: str
    operation: str
    layer: int


# What the config.json of a stock class says beside Llama's.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "mlp_bias": False},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 32},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "sliding_window": None, "use_sliding_window": False},
    "gemma": {"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu_pytorch_tanh"},
}
# Gemma multiplies embeddings by √width, and its norms by 1 + weight, which has 8 bits up to 256: what its norms leave
# small, all other matrices make up for.
EMBEDDED, AMPLIFIED = 16.0, 2.0**12
# What one entry of Qwen's queries and keys holds: their norms divide by it and its gain is 0. The others multiply back.
HEAD_PAD = 2.0**30


@dataclass(frozen=True)
class Shape:
    """Heads of a checkpoint: 16 query heads, in pairs that read the same keys and values.

    Attributes:
        groups: Key/value heads: 8, or 16 where each query head has a copy of its own.
        size: Dimensions of a head.
        theta: The rotary base.
    """

    groups: int = 8
    size: int = 16
    theta: float = 1e24

    @property
    def heads(self) -> int:
        return HEADS


@dataclass(frozen=True, eq=False)
class Canary:
    """A checkpoint with known answers.

    Attributes:
        name: Its name.
        shape: Heads and frequencies.
        weights: Arrays by Hugging Face's names.
        registers: The logit of every register.
        probes: In the order in which an engine computes them.
        prompts: Token ids.
        exact: Whether a correct engine's answers are the exact ones, bit for bit.
        family: Of `FAMILIES`.
    """

    name: str
    shape: Shape
    weights: Mapping[str, NDArray[Any]]
    registers: Mapping[str, int]
    probes: tuple[Probe, ...]
    prompts: tuple[tuple[int, ...], ...]
    exact: bool
    family: str

    @property
    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "model_type": self.family,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": VOCABULARY - 1,
            "dtype": "float32",
            "head_dim": self.shape.size,
            "hidden_act": "silu",
            "hidden_size": WIDTH,
            "initializer_range": 0.02,
            "intermediate_size": INNER,
            "max_position_embeddings": 1 << 21,
            "num_attention_heads": self.shape.heads,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": self.shape.groups,
            "rms_norm_eps": EPSILON,
            "rope_parameters": {"rope_theta": self.shape.theta, "rope_type": "default"},
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": VOCABULARY,
        } | FAMILIES[self.family]

    def write(self, folder: Path, dtype: str = "float32") -> None:
        """A Hugging Face folder: config.json, model.safetensors, a tokenizer of the words t0 … t259, and prompts.txt.

        Args:
            folder: Made if it is not there.
            dtype: How the weights are stored: float32, bfloat16 or float16. All hold the same numbers.
        """
        import torch
        from safetensors.torch import save_file

        make_folder(folder)
        beside = folder / ".model.safetensors.part"
        stored = {
            name: torch.tensor(each, dtype=getattr(torch, dtype), device="cpu") for name, each in self.weights.items()
        }
        save_file(stored, beside, {"format": "pt"})
        beside.replace(folder / "model.safetensors")
        words = {f"t{i}": i for i in range(VOCABULARY)}
        model = {"type": "WordLevel", "vocab": words, "unk_token": "t0"}
        empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
        tokenizer: dict[str, Any] = {"version": "1.0", "added_tokens": [], **empty, "model": model}
        write_json(folder / "tokenizer.json", tokenizer | {"pre_tokenizer": {"type": "WhitespaceSplit"}})
        special = {"bos_token": "t0", "unk_token": "t0", "eos_token": f"t{VOCABULARY - 1}"}
        write_json(
            folder / "tokenizer_config.json",
            {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left"} | special,
        )
        write_json(folder / "config.json", self.config | {"dtype": dtype})
        write_atomically(folder / "prompts.txt", "".join(" ".join(map(str, p)) + "\n" for p in self.prompts))


@dataclass
class Builder:
    """Weights of a canary, by register.

    Args:
        shape: Heads and frequencies.
        pad: What the first entry of every embedding holds; the norm makes 1 of it.
        names: The other registers, in the order of the logits, with their sizes.
        family: Of `FAMILIES`.
    """

    shape: Shape
    pad: float
    names: Mapping[str, int]
    family: str = "llama"

    def __post_init__(self) -> None:
        # The pad is alone in its block of 32, as formats with a scale a block lose what stands beside it.
        self.slots, top = {"pad": range(1)}, 32
        for name, size in self.names.items():
            self.slots[name] = range(top, top + size)
            top += size
        assert top <= WIDTH
        shape = self.shape
        self.embedding = np.zeros((VOCABULARY, WIDTH))
        self.embedding[:, 0] = self.pad
        self.query = np.zeros((LAYERS, shape.heads, shape.size, WIDTH))
        self.key, self.value = (np.zeros((LAYERS, HEADS // 2, shape.size, WIDTH)) for _ in range(2))
        self.output = np.zeros((LAYERS, WIDTH, shape.heads, shape.size))
        self.gate, self.up = (np.zeros((LAYERS, INNER, WIDTH)) for _ in range(2))
        self.down, self.units = np.zeros((LAYERS, WIDTH, INNER)), [0] * LAYERS

    def embed(self, token: int, **values: Entry) -> None:
        """What a token's embedding holds."""
        for name, each in values.items():
            self.embedding[token, list(self.slots[name])] = each

    def row(self, **weights: Entry) -> Row:
        """A functional of the stream."""
        row = np.zeros(WIDTH)
        for name, each in weights.items():
            row[list(self.slots[name])] = each
        return row

    def pair(self, number: int) -> int:
        """The slowest rotary pairs first: where content goes."""
        return self.shape.size // 2 - 1 - number

    def write(self, layer: int, head: int, entry: int, register: str, weight: float = 1.0) -> None:
        """Entry `entry` of a head's answer goes into a register."""
        self.output[layer, self.slots[register][0], head, entry] = weight

    def offset(self, layer: int, head: int, back: int, sharp: float) -> None:
        """A head reads the token `back` before: Σ_j sharp·cos(ω_j·(distance − back)) over the three fastest pairs."""
        half, root = self.shape.size // 2, self.shape.size**0.5
        for pair in range(3):
            angle = back * self.shape.theta ** (-pair / half)
            self.query[layer, head, pair, 0] = eighth_bits(sharp * root * math.cos(angle))
            self.query[layer, head, pair + half, 0] = eighth_bits(-sharp * root * math.sin(angle))
            self.key[layer, head // 2, pair, 0] = 1.0

    def unit(self, layer: int, gate: Row, up: Row, register: str) -> None:
        """The next MLP unit: silu(gate)·up into a register."""
        unit = self.units[layer]
        self.gate[layer, unit], self.up[layer, unit] = gate, up
        self.down[layer, self.slots[register][0], unit] = 1.0
        self.units[layer] += 1

    def multiply(self, layer: int, left: Row, right: Row, register: str, gain: float) -> None:
        """left·right: silu(g·l)·r/g − silu(−g·l)·r/g = l·r, whatever g; with a large one each unit is a gate."""
        for sign in (1.0, -1.0):
            self.unit(layer, sign * gain * left, sign * right / gain, register)

    def canary(self, name: str, probes: tuple[Probe, ...], prompts: tuple[tuple[int, ...], ...], exact: bool) -> Canary:
        """The checkpoint with all arrays by their Hugging Face names."""
        shape, gemma = self.shape, self.family == "gemma"
        embedding, head, amplified = self.embedding, np.eye(VOCABULARY, WIDTH), AMPLIFIED if gemma else 1.0
        gain = np.full(WIDTH, self.pad / 16 / amplified)
        gain[0] = 1 / 16
        if gemma:
            gain, embedding = gain - 1, embedding / EMBEDDED
        for matrix in (head, self.query, self.key, self.value, self.gate, self.up):
            matrix[..., 1:] *= amplified
        if self.family == "qwen3":
            self.query[:, :, -1, 0] += HEAD_PAD
            self.key[:, :, -1, 0] = HEAD_PAD
        copies = shape.groups // (HEADS // 2)
        key, value = (each.repeat(copies, axis=1) for each in (self.key, self.value))
        weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": gain}
        for layer in range(LAYERS):
            parts = {
                "input_layernorm": gain,
                "post_attention_layernorm": gain,
                "self_attn.q_proj": self.query[layer].reshape(shape.heads * shape.size, WIDTH),
                "self_attn.k_proj": key[layer].reshape(shape.groups * shape.size, WIDTH),
                "self_attn.v_proj": value[layer].reshape(shape.groups * shape.size, WIDTH),
                "self_attn.o_proj": self.output[layer].reshape(WIDTH, shape.heads * shape.size),
                "mlp.gate_proj": self.gate[layer],
                "mlp.up_proj": self.up[layer],
                "mlp.down_proj": self.down[layer],
            }
            if self.family == "qwen3":
                per_head = np.full(shape.size, HEAD_PAD / math.isqrt(shape.size))
                per_head[-1] = 0
                parts |= {"self_attn.q_norm": per_head, "self_attn.k_norm": per_head}
            weights |= {f"model.layers.{layer}.{part}.weight": each for part, each in parts.items()}
        weights = {name: each.astype(np.float32) for name, each in weights.items()}
        registers = {name: slots[0] for name, slots in self.slots.items()}
        return Canary(name, shape, weights, registers, probes, prompts, exact, self.family)


def bits_of(number: int, count: int) -> list[float]:
    """±1 for every bit."""
    return [1.0 if number >> k & 1 else -1.0 for k in range(count)]


def eighth_bits(value: float) -> float:
    """The nearest number of 8 bits, which float32, bfloat16 and float16 all hold."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)


def pad_of(half: bool) -> float:
    """A power of two beside which everything else is lost in the norm; float16 holds a smaller one."""
    return 2.0**15 if half else 2.0**24
