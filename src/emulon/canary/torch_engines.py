"""Engines of PyTorch: stock models in transformers, on a CPU and a GPU, and wrappers of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from emulon.canary.engine import LONGEST, OFFSETS, Answers, Engine, Opened, Prompts, as_array, loaded, module_of

# How prompts are given beside one forward pass each: the last token with the cache of the others, or with one of fixed
# size; as one batch; with padding on the left; in parts.
WAYS = ("decode", "static", "batch", "padded", "chunked")
PADDING, PART = 7, 16
FOUND: list[Engine] = []


def _add(name: str, package: str, arithmetic: str, open_: Callable[[Path], Opened], **more: Any) -> None:
    FOUND.append(Engine(name, package, arithmetic, open_, **more))


def _transformers(
    dtype: str,
    attention: str,
    way: str = "",
    *,
    offset: int = 0,
    compiled: str = "",
    kernel: str = "",
    tf32: bool = False,
    device: str = "cpu",
) -> Callable[[Path], Opened]:
    """A stock model: `compiled` is a mode of torch.compile, `kernel` a backend of scaled dot-product attention."""

    def opened(folder: Path) -> Opened:
        import torch

        model = loaded(folder, dtype, attention, device)
        call = torch.compile(model, mode=compiled) if compiled else model

        @torch.no_grad()
        def run(prompts: Prompts) -> Answers:
            tokens = [torch.tensor([list(prompt)], device=device) for prompt in prompts]
            with _settings(kernel, tf32):
                if way == "batch":
                    return as_array(call(torch.cat(tokens), use_cache=False).logits[:, -1])
                return np.concatenate([as_array(ask(one)) for one in tokens])

        def ask(tokens: Any) -> Any:
            length = tokens.shape[1]
            if way == "padded":
                padded = torch.cat([torch.zeros_like(tokens[:, :1]).expand(-1, PADDING), tokens], dim=1)
                mask = torch.ones_like(padded)
                mask[:, :PADDING] = 0
                places = (mask.cumsum(-1) - 1).clamp(min=0)
                return call(padded, attention_mask=mask, position_ids=places, use_cache=False).logits[:, -1]
            if way:
                size = PART if way == "chunked" else length - 1
                cache, answer = None, None
                if way == "static":
                    from transformers import StaticCache

                    cache = StaticCache(config=model.config, max_cache_len=LONGEST)
                for start in range(0, length, size):
                    part = call(tokens[:, start : start + size], past_key_values=cache, use_cache=True)
                    cache, answer = part.past_key_values, part.logits[:, -1]
                return answer
            places = torch.arange(length, device=device)[None] + offset
            return call(tokens, position_ids=places if offset else None, use_cache=False).logits[:, -1]

        return run

    return opened


@contextmanager
def _settings(kernel: str, tf32: bool) -> Iterator[None]:
    """A backend of attention, and products of TF32, for as long as it is entered."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        if kernel:
            with sdpa_kernel([getattr(SDPBackend, kernel)]):
                yield
        else:
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _format(dtype: str) -> str:
    """A stock Llama of float64 computes norms and frequencies in float32."""
    return "float32" if dtype == "float64" else dtype


for _dtype in ("float32", "float64", "bfloat16", "float16"):
    for _attention in ("eager", "sdpa"):
        _name = f"transformers {_dtype} {_attention}"
        _add(_name, "transformers", _format(_dtype), _transformers(_dtype, _attention), plain=True)
        for _way in WAYS:
            _add(f"{_name} {_way}", "transformers", _format(_dtype), _transformers(_dtype, _attention, _way))
        for _offset in OFFSETS:
            _open = _transformers(_dtype, _attention, offset=_offset)
            _add(f"{_name} at {_offset}", "transformers", _format(_dtype), _open, offset=_offset)
for _family in ("mistral", "qwen3", "gemma"):
    for _dtype in ("float32", "bfloat16"):
        for _attention, _way in (("eager", ""), ("sdpa", ""), ("sdpa", "decode"), ("sdpa", "chunked")):
            _name = f"transformers {_dtype} {_attention} {_way} {_family}".replace("  ", " ")
            _add(_name, "transformers", _dtype, _transformers(_dtype, _attention, _way), family=_family)
for _kernel in ("MATH", "FLASH_ATTENTION"):
    _open = _transformers("float32", "sdpa", kernel=_kernel)
    _add(f"transformers float32 sdpa {_kernel}", "transformers", "float32", _open)
_add(
    "transformers float32 sdpa compiled",
    "transformers",
    "float32",
    _transformers("float32", "sdpa", compiled="default"),
)
_add("transformers float32 flex", "transformers", "float32", _transformers("float32", "flex_attention"))

# On a GPU: (name, number format, attention, kernel, TF32, mode of torch.compile).
for _name, _dtype, _attention, _kernel, _tf32, _mode in (
    ("float32 eager", "float32", "eager", "", False, ""),
    ("float32 eager TF32", "float32", "eager", "", True, ""),
    ("float32 sdpa MATH", "float32", "sdpa", "MATH", False, ""),
    ("float32 sdpa EFFICIENT_ATTENTION", "float32", "sdpa", "EFFICIENT_ATTENTION", False, ""),
    ("float32 sdpa compiled", "float32", "sdpa", "", False, "default"),
    ("float32 sdpa compiled reduce-overhead", "float32", "sdpa", "", False, "reduce-overhead"),
    *(
        (f"{dtype} {attention} {kernel} {mode}".rstrip(), dtype, attention, kernel, False, mode)
        for dtype in ("bfloat16", "float16")
        for attention, kernel, mode in (
            ("eager", "", ""),
            *(("sdpa", kernel, "") for kernel in ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION")),
            ("sdpa", "", "default"),
        )
    ),
):
    _open = _transformers(_dtype, _attention, compiled=_mode, kernel=_kernel, tf32=_tf32, device="cuda")
    _add(f"cuda transformers {_name}", "transformers", _dtype, _open, device="cuda")


def _exported(folder: Path) -> Opened:
    import torch

    module, example, shapes = module_of(folder)
    call = torch.export.export(module, example, dynamic_shapes=shapes).module()
    return lambda prompts: np.concatenate(
        [as_array(call(torch.tensor([list(p)], device="cpu"))[:, -1]) for p in prompts]
    )


_add("transformers float32 sdpa exported", "transformers", "float32", _exported)


def _transformer_lens(folder: Path) -> Opened:
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(str(folder), dtype=torch.float32, device="cpu")

    @torch.no_grad()
    def run(prompts: Prompts) -> Answers:
        return np.concatenate([as_array(model(torch.tensor([list(p)], device="cpu"))[:, -1]) for p in prompts])

    return run


def _nnsight(folder: Path) -> Opened:
    import torch
    from nnsight import NNsight

    model = NNsight(loaded(folder))

    @torch.no_grad()
    def answer(prompt: Sequence[int]) -> Answers:
        with model.trace(torch.tensor([list(prompt)], device="cpu"), use_cache=False):
            logits = model.lm_head.output.save()
        return as_array(logits)[:, -1]

    return lambda prompts: np.concatenate([answer(prompt) for prompt in prompts])


_add("transformer-lens float32", "transformer_lens", "float32", _transformer_lens, plain=True)
_add("nnsight float32", "nnsight", "float32", _nnsight, plain=True)
