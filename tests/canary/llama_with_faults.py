"""A Llama forward pass in PyTorch, float32, with one fault at a time: each as it was seen in an engine, or could be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

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
    """What is done wrongly; `operations` are the probes of which one must be the first that is wrong."""

    operations: str = ""
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
    tied: bool = False
    activation: Callable[[Tensor], Tensor] = torch.nn.functional.silu


NONE = Fault()


class Llama:
    """The forward pass that every engine computes, plainly."""

    def __init__(self, folder: Path, fault: Fault = NONE) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.weights, self.fault = load_file(folder / "model.safetensors"), fault

    def logits(self, prompts: Any) -> Any:
        return torch.stack([self.forward(torch.tensor(list(prompt))) for prompt in prompts]).double().numpy()

    def linear(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[name]
        if self.fault.accumulated is not same:
            total = torch.zeros(*x.shape[:-1], len(weight))
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

    def rotate(self, x: Tensor) -> Tensor:
        size, fault = x.shape[-1], self.fault
        theta = fault.theta or self.config["rope_parameters"]["rope_theta"]
        frequencies = fault.frequency(1.0 / theta ** (torch.arange(0, size, 2) / size))
        places = torch.arange(x.shape[1], dtype=torch.float32)
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
        q, k = self.rotate(q), self.rotate(k)
        k, v = fault.keys(k), fault.values(v)
        if fault.stale:
            k, v = torch.cat([k[:, :-2], k[:, -3:-2], k[:, -1:]], 1), torch.cat([v[:, :-2], v[:, -3:-2], v[:, -1:]], 1)
        if fault.swapped:
            k, v = k.roll(1, 0), v.roll(1, 0)
        again = heads // groups
        k, v = (each.repeat(again, 1, 1) if fault.tiled else each.repeat_interleave(again, 0) for each in (k, v))
        scores = q @ k.mT * ((1.0 if fault.forgets_scale else size**-0.5) * fault.scale)
        scores = fault.score(scores)
        length = scores.shape[-1]
        visible = torch.ones(length, length).tril(fault.future).bool()
        if fault.window:
            visible &= ~torch.ones(length, length).tril(-fault.window).bool()
        scores = scores.masked_fill(~visible, -torch.inf)
        raw = scores.exp()
        weights = raw / raw.sum(-1, keepdim=True) if fault.no_maximum else scores.softmax(-1)
        read = fault.weight(weights) @ v
        return self.linear(read.transpose(0, 1).flatten(1), f"{at}o_proj.weight")

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            read = self.attention(self.norm(x, f"{at}input_layernorm.weight"), f"{at}self_attn.")
            x = read if self.fault.drops_residual and layer else x + read
            seen = self.norm(x, f"{at}post_attention_layernorm.weight")
            gate = self.fault.activation(self.linear(seen, f"{at}mlp.gate_proj.weight"))
            up = self.linear(seen, f"{at}mlp.up_proj.weight")
            x = x + self.linear(gate * up, f"{at}mlp.down_proj.weight")
        head = "model.embed_tokens.weight" if self.fault.tied else "lm_head.weight"
        return self.linear(self.norm(x[-1:], "model.norm.weight"), head)[0]
