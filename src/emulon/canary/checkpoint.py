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
from emulon.core.hub import tokenizer_files
from emulon.machine.targets.stock import with_stock_names

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


# Entries of config.json by family, beside Llama's.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "mlp_bias": False},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 32},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "sliding_window": None, "use_sliding_window": False},
    "gemma": {"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu_pytorch_tanh"},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new"},
    "gpt_neox": {"architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu", "use_parallel_residual": False},
}
# Their norms subtract a mean, their MLPs have no gate, and their pad is small enough for float16, too.
CENTRED = ("gpt2", "gpt_neox")
POSITIONS, NEOX_BASE = 256, 10.0
# Gemma multiplies embeddings by √width, and its norms by 1 + weight, which has 8 bits up to 256: what its norms leave
# small, all other matrices make up for.
EMBEDDED, AMPLIFIED = 16.0, 2.0**12
# One entry of Qwen's queries and keys: their norms divide by it and its gain is 0. The others multiply back.
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
        family: Of `FAMILIES`.
    """

    name: str
    shape: Shape
    weights: Mapping[str, NDArray[Any]]
    registers: Mapping[str, int]
    probes: tuple[Probe, ...]
    prompts: tuple[tuple[int, ...], ...]
    family: str

    @property
    def config(self) -> dict[str, Any]:
        """config.json."""
        rotary: dict[str, Any] = {"rope_theta": self.shape.theta, "rope_type": "default"}
        found = {
            "model_type": self.family,
            "attention_bias": self.family in CENTRED,
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
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": self.shape.groups,
            "rms_norm_eps": EPSILON,
            "rope_parameters": rotary,
            "tie_word_embeddings": False,
            "use_cache": True,
            "vocab_size": VOCABULARY,
        } | FAMILIES[self.family]
        if self.family == "gpt_neox":
            rotary["partial_rotary_factor"] = 0.5
            return found | {"layer_norm_eps": EPSILON, "hidden_dropout": 0.0}
        if self.family == "gpt2":
            kept = {name: found[name] for name in ("model_type", "bos_token_id", "eos_token_id", "dtype", "vocab_size")}
            sizes = {"n_embd": WIDTH, "n_head": HEADS, "n_inner": INNER, "n_layer": LAYERS, "n_positions": POSITIONS}
            dropped = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "tie_word_embeddings": False}
            return kept | sizes | dropped | FAMILIES["gpt2"] | {"layer_norm_epsilon": EPSILON}
        return found

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
        for name, content in tokenizer_files([f"t{i}" for i in range(VOCABULARY)], begins=False).items():
            special = {"bos_token": "t0", "unk_token": "t0", "eos_token": f"t{VOCABULARY - 1}"}
            write_json(folder / name, content | (special if name == "tokenizer_config.json" else {}))
        write_json(folder / "config.json", self.config | {"dtype": dtype})
        write_atomically(folder / "prompts.txt", "".join(" ".join(map(str, p)) + "\n" for p in self.prompts))


@dataclass
class Builder:
    """Weights of a canary, by register.

    Args:
        shape: Heads and frequencies.
        names: The registers beside the pad, in the order of the logits, with their sizes.
        family: Of `FAMILIES`.
        half: For float16: a smaller pad.
    """

    shape: Shape
    names: Mapping[str, int]
    family: str = "llama"
    half: bool = False

    def __post_init__(self) -> None:
        # The pad is alone in its block of 32, as formats with a scale a block lose what stands beside it.
        self.slots, top = {"pad": range(1)}, 32
        for name, size in self.names.items():
            self.slots[name] = range(top, top + size)
            top += size
        shape, self.centred = self.shape, self.family in CENTRED
        # Where norms subtract a mean, each register stands beside its negative: the mean is 0, and half the difference
        # is read. These are the first halves.
        self.width = width = WIDTH // 2 if self.centred else WIDTH
        assert top <= width
        self.embedding, self.positions = np.zeros((VOCABULARY, width)), np.zeros((POSITIONS, width))
        # A power of two that the norm makes 1 of. Alone, all else is lost beside it in the norm; with LayerNorm, which
        # sees four of them, a large one would cost bits of the mean.
        self.pad = 2.0**8 if self.centred else 2.0**15 if self.half else 2.0**24
        self.embedding[:, : 1 + self.centred] = self.pad
        self.norm = self.pad / (8 if self.centred else 16)
        # Beside such a small pad, what is far off in one register must be small, or it moves the norms of all.
        self.faint = 2.0**-6 if self.centred else 1.0
        self.query = np.zeros((LAYERS, HEADS, shape.size, width))
        self.key, self.value = (np.zeros((LAYERS, HEADS // 2, shape.size, width)) for _ in range(2))
        self.output = np.zeros((LAYERS, width, HEADS, shape.size))
        self.gate, self.up = (np.zeros((LAYERS, INNER, width)) for _ in range(2))
        self.down, self.units = np.zeros((LAYERS, width, INNER)), [0] * LAYERS
        self.bias: dict[str, Row] = {}

    def embed(self, token: int, **values: Entry) -> None:
        """Set registers of a token's embedding."""
        for name, each in values.items():
            self.embedding[token, list(self.slots[name])] = each

    def row(self, **weights: Entry) -> Row:
        """A functional of the stream."""
        row = np.zeros(self.width)
        for name, each in weights.items():
            row[list(self.slots[name])] = each
        return row

    def pair(self, number: int) -> int:
        """Entry of a head for content: the slowest rotary pairs first, or entries that are not rotated."""
        if self.centred:
            return number + 2 * self.turning
        return self.turning - 1 - number

    @property
    def turning(self) -> int:
        """Number of rotary pairs of a head."""
        return {"gpt2": 0, "gpt_neox": self.shape.size // 4}.get(self.family, self.shape.size // 2)

    def write(self, layer: int, head: int, entry: int, register: str, weight: float = 1.0) -> None:
        """Entry `entry` of a head's answer goes into a register."""
        self.output[layer, self.slots[register][0], head, entry] = weight

    def offset(self, layer: int, head: int, back: int, sharp: float) -> None:
        """A head reads the token `back` before.

        Σ_j sharp·cos(ω_j·(distance − back)) over the three fastest pairs; learnt positions hold their numbers in bits,
        and those of the tokens before.
        """
        root, key = self.shape.size**0.5, self.key[layer, head // 2]
        if self.family == "gpt2":
            for bit, (own, other) in enumerate(zip(self.slots["place"], self.slots[f"place_{back}"], strict=True)):
                self.query[layer, head, bit, other], key[bit, own] = sharp, 1.0
            return
        for pair in range(3):
            angle = back * self.shape.theta ** (-pair / self.turning)
            self.query[layer, head, pair, 0] = eighth_bits(sharp * root * math.cos(angle))
            self.query[layer, head, pair + self.turning, 0] = eighth_bits(-sharp * root * math.sin(angle))
            key[pair, 0] = 1.0

    def unit(self, layer: int, gate: Row, up: Row, register: str, weight: float = 1.0) -> None:
        """The next MLP unit: f(gate)·up into a register, or f(up) where there are no gates."""
        unit = self.units[layer]
        self.gate[layer, unit], self.up[layer, unit] = gate, up
        self.down[layer, self.slots[register][0], unit] = weight
        self.units[layer] += 1

    def multiply(self, layer: int, left: Row, right: Row, register: str, gain: float) -> None:
        """left·right: silu(g·l)·r/g − silu(−g·l)·r/g = l·r, whatever g; with a large one each unit is a gate."""
        for sign in (1.0, -1.0):
            self.unit(layer, sign * gain * left, sign * right / gain, register)

    def switch(self, layer: int, left: Row, right: Row, register: str, gain: float) -> None:
        """left·right of a left factor that is 0 or at least 32/gain; without gates max(left + right − ½, 0)."""
        if self.centred:
            self.unit(layer, left, 512 * (left + right - self.row(pad=0.5)), register, 1 / 512)
        else:
            self.unit(layer, gain * left, right / gain, register)

    def line(self, layer: int, row: Row, register: str, weight: float = 1.0) -> None:
        """32·weight·row by saturated units: f(32)·row, or f(64 + row) − f(64)."""
        if self.centred:
            self.unit(layer, row, self.row(pad=64) + row, register, 32 * weight)
            self.unit(layer, row, self.row(pad=64), register, -32 * weight)
        else:
            self.unit(layer, self.row(pad=32), row, register, weight)

    def canary(self, name: str, probes: tuple[Probe, ...], prompts: tuple[tuple[int, ...], ...]) -> Canary:
        """The checkpoint with all arrays by their Hugging Face names."""
        shape, gemma = self.shape, self.family == "gemma"
        embedding, head, amplified = self.embedding, np.eye(VOCABULARY, self.width), AMPLIFIED if gemma else 1.0
        gain = np.full(self.width, self.norm / amplified)
        gain[: 1 + self.centred] = self.norm / self.pad
        if gemma:
            gain, embedding = gain - 1, embedding / EMBEDDED
        for matrix in (head, self.query, self.key, self.value, self.gate, self.up):
            matrix[..., 1:] *= amplified
        if self.family == "qwen3":
            self.query[:, :, -1, 0] += HEAD_PAD
            self.key[:, :, -1, 0] = HEAD_PAD
        copies = shape.groups // (HEADS // 2)
        key, value = (each.repeat(copies, axis=1) for each in (self.key, self.value))
        weights = {"model.embed_tokens": embedding, "lm_head": head, "model.norm": gain}
        if self.family == "gpt2":
            weights["model.positions"] = self.positions
        for layer in range(LAYERS):
            parts = {
                "input_layernorm": gain,
                "post_attention_layernorm": gain,
                "self_attn.q_proj": self.query[layer].reshape(HEADS * shape.size, -1),
                "self_attn.k_proj": key[layer].reshape(shape.groups * shape.size, -1),
                "self_attn.v_proj": value[layer].reshape(shape.groups * shape.size, -1),
                "self_attn.o_proj": self.output[layer].reshape(self.width, HEADS * shape.size),
                "mlp.up_proj": self.up[layer],
                "mlp.down_proj": self.down[layer],
            }
            if not self.centred:
                parts["mlp.gate_proj"] = self.gate[layer]
            if self.family == "qwen3":
                per_head = np.full(shape.size, HEAD_PAD / math.isqrt(shape.size))
                per_head[-1] = 0
                parts |= {"self_attn.q_norm": per_head, "self_attn.k_norm": per_head}
            weights |= {f"model.layers.{layer}.{part}": each for part, each in parts.items()}
        if self.centred:
            weights = {
                name: np.tile(each, 2) if each.ndim == 1 else _mirrored(name, each) for name, each in weights.items()
            }
            biased = {name: np.zeros(len(each)) for name, each in weights.items() if "layers" in name or "norm" in name}
            biased |= {name: _mirrored(name, each) for name, each in self.bias.items()}
            weights |= {f"{name}.bias": each for name, each in biased.items()}
        stored = {
            name if name.endswith(".bias") else f"{name}.weight": each.astype(np.float32)
            for name, each in weights.items()
        }
        stored = with_stock_names(self.family, stored, HEADS)
        registers = {name: slots[0] for name, slots in self.slots.items()}
        return Canary(name, shape, stored, registers, probes, prompts, self.family)


def _mirrored(name: str, each: Row) -> Row:
    """Outputs into the stream beside their negatives; inputs as half of the difference."""
    if any(part in name for part in ("norm", "o_proj", "down_proj")):
        return np.concatenate([each, -each])
    if each.ndim == 1:
        return each
    return np.concatenate([each, -each], axis=-1) / (1 if "model." in name and "layers" not in name else 2)


def bits_of(number: int, count: int) -> list[float]:
    """±1 for every bit."""
    return [1.0 if number >> k & 1 else -1.0 for k in range(count)]


def eighth_bits(value: float) -> float:
    """The nearest number of 8 bits, which float32, bfloat16 and float16 all hold."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)
