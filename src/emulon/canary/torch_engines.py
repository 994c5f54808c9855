"""Engines of PyTorch: stock models in transformers, on a CPU and a GPU, and wrappers of them."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from emulon.canary.engine import LONGEST, OFFSETS, Answers, Opened, Prompts, add, each

# How prompts are given beside one forward pass each: the last token with the cache of the others, or with one of fixed
# size; as one batch; with padding on the left; in parts.
WAYS = ("decode", "static", "batch", "padded", "chunked")
PADDING, PART = 7, 16


def last(logits: Any) -> Answers:
    """Of a tensor (1, tokens, vocabulary)."""
    found: Answers = logits[0, -1].detach().double().cpu().numpy()
    return found


def loaded(folder: Path, dtype: str = "float32", attention: str = "sdpa", device: str = "cpu") -> Any:
    """The checkpoint in transformers."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    quiet: Any = logging  # its functions have no annotations
    quiet.disable_progress_bar()
    options = {"dtype": getattr(torch, dtype), "attn_implementation": attention}
    model: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
    return model.eval().to(device)


def module_of(folder: Path) -> Any:
    """The checkpoint as a module from tokens to logits, and what exporters want to know of its argument."""
    import torch

    class Logits(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids, use_cache=False).logits

    example, model = torch.zeros(1, 8, dtype=torch.long, device="cpu"), loaded(folder)
    length = torch.export.Dim("length", min=2, max=min(4096, model.config.max_position_embeddings))
    return Logits(model), (example,), {"input_ids": {1: length}}


def _transformers(
    folder: Path,
    *,
    dtype: str,
    attention: str,
    way: str = "",
    offset: int = 0,
    compiled: str = "",
    kernel: str = "",
    tf32: bool = False,
    fp8: bool = False,
    device: str = "cpu",
) -> Opened:
    """A stock model: `compiled` is a mode of torch.compile, `kernel` a backend of scaled dot-product attention, `fp8`
    has matrix products of the blocks in float8."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model = loaded(folder, dtype, attention, device)
    if fp8:
        _in_float8(model)
    call = torch.compile(model, mode=compiled) if compiled else model

    def run(prompts: Prompts) -> Answers:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        try:
            with torch.no_grad(), sdpa_kernel([getattr(SDPBackend, kernel)]) if kernel else nullcontext():
                if way != "batch":
                    return each(ask)(prompts)
                rows = call(torch.tensor([list(p) for p in prompts], device=device), use_cache=False).logits
                return np.stack([last(row[None]) for row in rows])
        finally:
            torch.set_float32_matmul_precision(before)

    def ask(prompt: Any) -> Answers:
        tokens, length = torch.tensor([prompt], device=device), len(prompt)
        if way == "padded":
            padded = torch.cat([torch.zeros_like(tokens[:, :1]).expand(-1, PADDING), tokens], dim=1)
            mask = torch.ones_like(padded)
            mask[:, :PADDING] = 0
            places = (mask.cumsum(-1) - 1).clamp(min=0)
            return last(call(padded, attention_mask=mask, position_ids=places, use_cache=False).logits)
        if way:
            size = PART if way == "chunked" else length - 1
            cache: Any = None
            part: Any = None
            if way == "static":
                from transformers import StaticCache

                cache = StaticCache(config=model.config, max_cache_len=LONGEST)
            for start in range(0, length, size):
                part = call(tokens[:, start : start + size], past_key_values=cache, use_cache=True)
                cache = part.past_key_values
            return last(part.logits)
        places = torch.arange(length, device=device)[None] + offset
        return last(call(tokens, position_ids=places if offset else None, use_cache=False).logits)

    return run


def _in_float8(model: Any) -> None:
    """Linear maps but the last multiply numbers of float8 (e4m3), with one scale for the weights and one for the
    activations of a call, and sum in float32: what inference in float8 usually is."""
    import torch

    kind = torch.float8_e4m3fn

    def scaled(x: Any) -> tuple[Any, Any]:
        scale = x.abs().max().float().clamp(min=1e-30) / torch.finfo(kind).max
        return (x.float() / scale).to(kind), scale

    def forward(x: Any, weight: Any, unit: Any) -> Any:
        rows, scale = scaled(x.flatten(0, -2))
        product = torch._scaled_mm(rows, weight.t(), scale_a=scale, scale_b=unit, out_dtype=x.dtype)
        return product.view(*x.shape[:-1], -1)

    linear: list[Any] = [part for part in model.get_decoder().modules() if isinstance(part, torch.nn.Linear)]
    for module in linear:
        weight, unit = scaled(module.weight.detach())
        module.forward = partial(forward, weight=weight, unit=unit)


def _add(name: str, dtype: str, attention: str, *, plain: bool = False, family: str = "llama", **how: Any) -> None:
    """A stock model; one of float64 computes norms and frequencies in float32."""
    about = {key: how[key] for key in ("offset", "device") if key in how} | {"plain": plain, "family": family}
    open_ = partial(_transformers, dtype=dtype, attention=attention, **how)
    add(name, "transformers", "float32" if dtype == "float64" else dtype, open_, **about)


for _dtype in ("float32", "float64", "bfloat16", "float16"):
    for _attention in ("eager", "sdpa"):
        _name = f"transformers {_dtype} {_attention}"
        _add(_name, _dtype, _attention, plain=True)
        for _way in WAYS:
            _add(f"{_name} {_way}", _dtype, _attention, way=_way)
        for _offset in OFFSETS:
            _add(f"{_name} at {_offset}", _dtype, _attention, offset=_offset)
for _family in ("mistral", "qwen3", "gemma", "gpt2", "gpt_neox"):
    for _dtype in ("float32", "bfloat16", "float16"):
        if _dtype != "float16" or _family.startswith("gpt"):
            _add(f"transformers {_dtype} eager {_family}", _dtype, "eager", family=_family)
            _add(f"transformers {_dtype} sdpa {_family}", _dtype, "sdpa", family=_family)
            for _way in ("decode", "chunked"):
                _add(f"transformers {_dtype} sdpa {_way} {_family}", _dtype, "sdpa", way=_way, family=_family)
for _family in ("gpt2", "gpt_neox"):
    _add(f"transformers float32 sdpa padded {_family}", "float32", "sdpa", way="padded", family=_family)
for _kernel in ("MATH", "FLASH_ATTENTION"):
    _add(f"transformers float32 sdpa {_kernel}", "float32", "sdpa", kernel=_kernel)
_add("transformers float32 sdpa compiled", "float32", "sdpa", compiled="default")
_add("transformers float32 flex", "float32", "flex_attention")


def _on_gpu(dtype: str, attention: str, kernel: str = "", compiled: str = "", **how: Any) -> None:
    mode = {"": "", "default": "compiled"}.get(compiled, f"compiled {compiled}")
    words = ("cuda transformers", dtype, attention, kernel, *(option.upper() for option in how), mode)
    name = " ".join(word for word in words if word)
    _add(name, dtype, attention, compiled=compiled, kernel=kernel, device="cuda", **how)


_on_gpu("float32", "eager")
_on_gpu("float32", "eager", tf32=True)
for _kernel in ("MATH", "EFFICIENT_ATTENTION"):
    _on_gpu("float32", "sdpa", _kernel)
for _mode in ("default", "reduce-overhead"):
    _on_gpu("float32", "sdpa", compiled=_mode)
for _dtype in ("bfloat16", "float16"):
    _on_gpu(_dtype, "eager")
    for _kernel in ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION"):
        _on_gpu(_dtype, "sdpa", _kernel)
    _on_gpu(_dtype, "sdpa", compiled="default")
_on_gpu("bfloat16", "sdpa", fp8=True)


def _exported(folder: Path) -> Opened:
    import torch

    module, example, shapes = module_of(folder)
    call = torch.export.export(module, example, dynamic_shapes=shapes).module()
    return each(lambda prompt: last(call(torch.tensor([prompt], device="cpu"))))


def _transformer_lens(folder: Path) -> Opened:
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(str(folder), dtype=torch.float32, device="cpu")
    return each(lambda prompt: last(model(torch.tensor([prompt], device="cpu"))))


def _nnsight(folder: Path) -> Opened:
    import torch
    from nnsight import NNsight

    model = NNsight(loaded(folder))

    @torch.no_grad()
    def answer(prompt: Any) -> Answers:
        with model.trace(torch.tensor([prompt], device="cpu"), use_cache=False):
            logits = model.lm_head.output.save()
        return last(logits)

    return each(answer)


add("transformers float32 sdpa exported", "transformers", "float32", _exported)
add("transformer-lens float32", "transformer_lens", "float32", _transformer_lens, plain=True)
add("transformer-lens float32 gpt2", "transformer_lens", "float32", _transformer_lens, family="gpt2")
add("transformer-lens float32 gpt_neox", "transformer_lens", "float32", _transformer_lens, family="gpt_neox")
add("nnsight float32", "nnsight", "float32", _nnsight, plain=True)
