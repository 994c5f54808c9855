"""A canary: a tiny stock Llama with named registers, written number by number, and the prompts that it is asked.

The LM head is the identity on the registers, so logit i is entry i of the normalised stream after the last token: an
engine shows every register without hooks. Each probe writes its register once, in a known layer, by one operation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from emulon.core.files import make_folder, write_atomically, write_json

VOCABULARY, WIDTH, INNER, LAYERS, HEADS = 320, 256, 64, 2, 16
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


@dataclass(frozen=True)
class Shape:
    """Heads of a checkpoint: 16 query heads, in pairs that read the same keys and values.

    Attributes:
        groups: Key/value heads: 8, or 16 where each query head has a copy of its own.
        size: Dimensions of a head; √size is whole.
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
        formats: The number formats that hold its weights and pad.
    """

    name: str
    shape: Shape
    weights: Mapping[str, NDArray[Any]]
    registers: Mapping[str, int]
    probes: tuple[Probe, ...]
    prompts: tuple[tuple[int, ...], ...]
    exact: bool
    formats: tuple[str, ...]

    @property
    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
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
            "mlp_bias": False,
            "num_attention_heads": self.shape.heads,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": self.shape.groups,
            "rms_norm_eps": EPSILON,
            "rope_parameters": {"rope_theta": self.shape.theta, "rope_type": "default"},
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": VOCABULARY,
        }

    def write(self, folder: Path) -> None:
        """A Hugging Face folder: config.json, model.safetensors, a tokenizer of the words t0 … t319, and prompts.txt.

        Args:
            folder: Made if it is not there.
        """
        make_folder(folder)
        beside = folder / ".model.safetensors.part"
        save_file({name: np.ascontiguousarray(each) for name, each in self.weights.items()}, beside, {"format": "pt"})
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
        write_json(folder / "config.json", self.config)
        write_atomically(folder / "prompts.txt", "".join(" ".join(map(str, p)) + "\n" for p in self.prompts))


@dataclass
class Builder:
    """Weights of a canary, by register.

    Args:
        shape: Heads and frequencies.
        pad: What the first entry of every embedding holds; the norm makes 1 of it.
        names: The other registers, in the order of the logits, with their sizes.
    """

    shape: Shape
    pad: float
    names: Mapping[str, int]
    weights: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slots, top = {"pad": range(1)}, 1
        for name, size in self.names.items():
            self.slots[name] = range(top, top + size)
            top += size
        assert top <= WIDTH
        gain = np.full(WIDTH, self.pad / 16)
        gain[0] = 1 / 16
        shape = self.shape
        self.embedding = np.zeros((VOCABULARY, WIDTH))
        self.embedding[:, 0] = self.pad
        self.weights = {
            "model.embed_tokens.weight": self.embedding,
            "lm_head.weight": np.eye(VOCABULARY, WIDTH),
            "model.norm.weight": gain,
        }
        self.query = np.zeros((LAYERS, shape.heads, shape.size, WIDTH))
        self.key, self.value = (np.zeros((LAYERS, HEADS // 2, shape.size, WIDTH)) for _ in range(2))
        self.output = np.zeros((LAYERS, WIDTH, shape.heads, shape.size))
        self.gate, self.up = (np.zeros((LAYERS, INNER, WIDTH)) for _ in range(2))
        self.down, self.units = np.zeros((LAYERS, WIDTH, INNER)), [0] * LAYERS
        for layer in range(LAYERS):
            for norm in ("input_layernorm", "post_attention_layernorm"):
                self.weights[f"model.layers.{layer}.{norm}.weight"] = gain

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
        half, root = self.shape.size // 2, math.isqrt(self.shape.size)
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

    def built(self) -> dict[str, NDArray[Any]]:
        """All arrays, by their names in a checkpoint."""
        shape = self.shape
        copies = shape.groups // (HEADS // 2)
        key, value = (each.repeat(copies, axis=1) for each in (self.key, self.value))
        for layer in range(LAYERS):
            at = f"model.layers.{layer}."
            self.weights |= {
                f"{at}self_attn.q_proj.weight": self.query[layer].reshape(shape.heads * shape.size, WIDTH),
                f"{at}self_attn.k_proj.weight": key[layer].reshape(shape.groups * shape.size, WIDTH),
                f"{at}self_attn.v_proj.weight": value[layer].reshape(shape.groups * shape.size, WIDTH),
                f"{at}self_attn.o_proj.weight": self.output[layer].reshape(WIDTH, shape.heads * shape.size),
                f"{at}mlp.gate_proj.weight": self.gate[layer],
                f"{at}mlp.up_proj.weight": self.up[layer],
                f"{at}mlp.down_proj.weight": self.down[layer],
            }
        return {name: each.astype(np.float32) for name, each in self.weights.items()}


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


def formats_of(half: bool) -> tuple[str, ...]:
    """The formats that hold a checkpoint with this pad."""
    return ("float16",) if half else ("float32", "bfloat16")
