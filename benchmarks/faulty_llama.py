"""A Llama forward pass in PyTorch, with one fault at a time: each as it was seen in an engine, or could be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from emulon.canary.check import OVERFLOW, OpenEngine, Report

Round = Callable[[Tensor], Tensor]


def bfloat16(t: Tensor) -> Tensor:
    return t.bfloat16().float()


def float16(t: Tensor) -> Tensor:
    return t.half().float()


def tf32(t: Tensor) -> Tensor:
    bits = t.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def int8(t: Tensor) -> Tensor:
    scale = t.abs().amax(-1, keepdim=True).clamp(min=1e-20) / 127
    return (t / scale).round() * scale


def same(t: Tensor) -> Tensor:
    return t


@dataclass(frozen=True)
class Fault:
    """What is done wrongly.

    `probes` are the beginnings of the names of those of which one must be the first that is wrong; `precision` says
    that the operation is right but for its roundings.
    """

    probes: str = ""
    precision: bool = False
    angle: Round = same
    frequency: Round = same
    cosine: Round = same
    interleaved: bool = False
    theta: float = 0.0
    wrong_half: bool = False
    restart: int = 0
    norm: Round = same
    epsilon: float = 1.0
    score: Round = same
    weight: Round = same
    keys: Round = same
    values: Round = same
    scale: float = 1.0
    forgets_scale: bool = False
    tiled: bool = False
    swapped: bool = False
    product: Round = same
    accumulated: Round = same
    future: int = 0
    window: int = 0
    stale: bool = False
    no_maximum: bool = False
    drops_residual: bool = False
    tiled_values: bool = False
    late_keys: int = 0
    stream: Round = same
    tied: bool = False
    activation: Callable[[Tensor], Tensor] = silu


NONE = Fault()


class Llama:
    """The forward pass that every engine computes, plainly."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor], fault: Fault = NONE) -> None:
        self.config, self.weights, self.fault = config, weights, fault

    @classmethod
    def of(cls, folder: Path, fault: Fault = NONE) -> Llama:
        """From a Hugging Face folder."""
        return cls(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"), fault)

    def logits(self, prompts: Any) -> Any:
        """After each prompt's last token, as an engine gives them."""
        return torch.stack([self.forward(torch.tensor(list(p), device="cpu"))[-1] for p in prompts]).double().numpy()

    def linear(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[name]
        if self.fault.accumulated is not same:
            total = torch.zeros(*x.shape[:-1], len(weight), dtype=x.dtype, device="cpu")
            for start in range(0, x.shape[-1], 16):
                part = x[..., start : start + 16] @ weight[:, start : start + 16].T
                total = self.fault.accumulated(total + part)
            return total
        return self.fault.product(x) @ self.fault.product(weight).T

    def norm(self, x: Tensor, name: str) -> Tensor:
        x = self.fault.norm(x)
        mean = self.fault.norm((x * x).mean(-1, keepdim=True))
        epsilon = self.config["rms_norm_eps"] * self.fault.epsilon
        return self.weights[name] * self.fault.norm(x * torch.rsqrt(mean + epsilon))

    def rotate(self, x: Tensor, late: int = 0) -> Tensor:
        size, fault = x.shape[-1], self.fault
        theta = fault.theta or self.config["rope_parameters"]["rope_theta"]
        frequencies = fault.frequency(1.0 / theta ** (torch.arange(0, size, 2, dtype=x.dtype, device="cpu") / size))
        places = torch.arange(x.shape[1], dtype=x.dtype, device="cpu")
        places = places + late
        if fault.restart:
            places = places % fault.restart
        angles = fault.angle(places)[:, None] * fault.angle(frequencies)
        cosines, sines = fault.cosine(angles.cos()), fault.cosine(angles.sin())
        a, b = (x[..., 0::2], x[..., 1::2]) if fault.interleaved else (x[..., : size // 2], x[..., size // 2 :])
        if fault.wrong_half:
            a, b = b, a
        turned = (a * cosines - b * sines, b * cosines + a * sines)
        return torch.stack(turned, -1).flatten(-2) if fault.interleaved else torch.cat(turned, -1)

    def attention(self, x: Tensor, at: str) -> Tensor:
        config, fault = self.config, self.fault
        heads, groups, size = (config[n] for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        q, k, v = (
            self.linear(x, f"{at}{name}_proj.weight").unflatten(-1, (count, size)).transpose(0, 1)
            for name, count in (("q", heads), ("k", groups), ("v", groups))
        )
        q, k = self.rotate(q), self.rotate(k, fault.late_keys)
        k, v = fault.keys(k), fault.values(v)
        if fault.stale:
            k, v = torch.cat([k[:, :-2], k[:, -3:-2], k[:, -1:]], 1), torch.cat([v[:, :-2], v[:, -3:-2], v[:, -1:]], 1)
        if fault.swapped:
            k, v = k.roll(1, 0), v.roll(1, 0)
        again = heads // groups
        k, v = (
            each.repeat(again, 1, 1) if tiled else each.repeat_interleave(again, 0)
            for each, tiled in ((k, fault.tiled), (v, fault.tiled or fault.tiled_values))
        )
        scores = q @ k.mT * ((1.0 if fault.forgets_scale else size**-0.5) * fault.scale)
        scores = fault.score(scores)
        length = scores.shape[-1]
        ones = torch.ones(length, length, device="cpu")
        visible = ones.tril(fault.future).bool()
        if fault.window:
            visible &= ~ones.tril(-fault.window).bool()
        scores = scores.masked_fill(~visible, -torch.inf)
        raw = scores.exp()
        weights = raw / raw.sum(-1, keepdim=True) if fault.no_maximum else scores.softmax(-1)
        read = fault.weight(weights) @ v
        return self.linear(read.transpose(0, 1).flatten(1), f"{at}o_proj.weight")

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits after every token."""
        x = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            read = self.attention(self.norm(x, f"{at}input_layernorm.weight"), f"{at}self_attn.")
            x = self.fault.stream(read if self.fault.drops_residual and layer else x + read)
            seen = self.norm(x, f"{at}post_attention_layernorm.weight")
            gate = self.fault.activation(self.linear(seen, f"{at}mlp.gate_proj.weight"))
            up = self.linear(seen, f"{at}mlp.up_proj.weight")
            x = self.fault.stream(x + self.linear(gate * up, f"{at}mlp.down_proj.weight"))
        head = "model.embed_tokens.weight" if self.fault.tied else "lm_head.weight"
        return self.linear(self.norm(x, "model.norm.weight"), head)


def engine(fault: Fault) -> OpenEngine:
    """As `emulon.canary.check` wants it."""
    return lambda folder: Llama.of(folder, fault).logits


ROTARY = "rope own back"
# Those that the probes were made for: of these twenty-eight each names its operation by design.
FAULTS = {
    "rotary angles in TF32": Fault(ROTARY, True, angle=tf32),
    "rotary positions and frequencies in bfloat16": Fault(ROTARY, True, angle=bfloat16),
    "rotary frequencies in bfloat16": Fault(ROTARY, True, frequency=bfloat16),
    "cosines in bfloat16": Fault(ROTARY, True, cosine=bfloat16),
    "rotary pairs interleaved, not in halves": Fault(ROTARY, interleaved=True),
    "rotary base ignored": Fault(ROTARY, theta=1e4),
    "norm in bfloat16": Fault("norm", True, norm=bfloat16),
    "epsilon 1e-5": Fault("epsilon", epsilon=1e-5 / 2.0**-20),
    "scores in bfloat16": Fault("tie", True, score=bfloat16),
    "scores in float16": Fault("tie", True, score=float16),
    "softmax weights in bfloat16": Fault("tie", True, weight=bfloat16),
    "cache of keys in float16": Fault("look rope", True, keys=float16),
    "cache of values in float16": Fault("mixed", True, values=float16),
    "cache of keys in int8": Fault("look rope", True, keys=int8),
    "cache of values in int8": Fault("mixed mean", True, values=int8),
    "scale 1/√96 for 1/√128": Fault("tie", scale=(128 / 96) ** 0.5),
    "grouped heads tiled, not repeated": Fault("groups", tiled=True),
    "factors of matrix products in TF32": Fault("linear", True, product=tf32),
    "mask off by one": Fault("future", future=1),
    "a stale slot in the cache": Fault("mean", stale=True),
    "key and value heads shifted by one": Fault("groups", swapped=True),
    "scale forgotten": Fault("tie", forgets_scale=True),
    "softmax without its maximum": Fault("overflow", no_maximum=True),
    "positions restarted after 32": Fault(ROTARY, restart=32),
    "rotary on the wrong half": Fault(ROTARY, wrong_half=True),
    "sums in bfloat16": Fault("linear", True, accumulated=bfloat16),
    "residual dropped in layer 2": Fault("embedding", drops_residual=True),
    "epsilon times 10": Fault("epsilon", epsilon=10.0),
}
# Faults that no probe was made for, with what they should be named; the first four were tests before.
LATER = {
    "window of 32 tokens": Fault("mean", window=32),
    "tied embeddings": Fault("embedding", tied=True),
    "GELU for SiLU": Fault("activation", activation=gelu),
    "ReLU for SiLU": Fault("activation", activation=relu),
    "values tiled, keys repeated": Fault("groups", tiled_values=True),
    "keys a position late": Fault(ROTARY, late_keys=1),
    "scale applied twice": Fault("tie", scale=0.25),
    "softmax weights in float16": Fault("tie", True, weight=float16),
    "cache of keys in bfloat16": Fault("look rope", True, keys=bfloat16),
    "cache of values in bfloat16": Fault("mixed", True, values=bfloat16),
    "SiLU in bfloat16": Fault("product activation", True, activation=lambda t: bfloat16(silu(t))),
    "residual stream in bfloat16": Fault("embedding logit", True, stream=bfloat16),
}


def rightly_named(fault: Fault, report: Report) -> bool:
    """Whether a report's first wrong operation is the one that the fault is in."""
    first = report.first_wrong
    if first is None:
        return False
    named = "overflow" if first.operation == OVERFLOW else first.probe
    return any(named.startswith(word) for word in fault.probes.split())
