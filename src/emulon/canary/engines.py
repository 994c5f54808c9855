"""Engines that a canary is run in: token ids in, the last token's logits out.

An engine is opened on a Hugging Face folder (llama.cpp's on a GGUF file that is written beside it) and answers a list
of prompts with an array (prompts, vocabulary). A package is imported when its engine is opened.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulon.core.errors import EmulonError
from emulon.core.registry import Registry

Prompts = Sequence[Sequence[int]]
Answers = NDArray[Any]
Opened = Callable[[Prompts], Answers]
# How prompts are given: a forward pass each; the last token with the cache of the others; as one batch; with padding
# on the left; in parts; at positions from OFFSET on.
WAYS = ("prefill", "decode", "batch", "padded", "chunked", "offset")
PADDING, PART, OFFSET = 7, 16, 32768


@dataclass(frozen=True)
class Engine:
    """One engine in one configuration.

    Attributes:
        name: As the table writes it.
        package: What has to be installed.
        arithmetic: The number format that it claims to compute in.
        open: From a checkpoint's folder to a function from prompts to logits.
        offset: The position of the first token.

    Example:
        >>> ENGINES["transformers float32 sdpa"].open(folder)([[1, 5, 3]])
    """

    name: str
    package: str
    arithmetic: str
    open: Callable[[Path], Opened]
    offset: int = 0

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


ENGINES: Registry[Engine] = Registry("engine")


def engine_named(name: str) -> Engine:
    """The engine of this name.

    Raises:
        EmulonError: There is none, or its package is not installed.
    """
    engine = ENGINES.named(name)
    if not engine.installed:
        raise EmulonError(f"{name} needs the package {engine.package}: pip install 'emulon[engines]'")
    return engine


def _add(name: str, package: str, arithmetic: str, open_: Callable[[Path], Opened], **more: Any) -> None:
    ENGINES[name] = Engine(name, package, arithmetic, open_, **more)


def _transformers(dtype: str, attention: str, way: str = "prefill", compiled: bool = False) -> Callable[[Path], Opened]:
    def opened(folder: Path) -> Opened:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        quiet: Any = logging  # its functions have no annotations
        quiet.disable_progress_bar()
        options = {"dtype": getattr(torch, dtype), "attn_implementation": attention}
        model: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
        model.eval()
        call = torch.compile(model) if compiled else model

        @torch.no_grad()
        def run(prompts: Prompts) -> Answers:
            tokens = [torch.tensor([list(prompt)], device="cpu") for prompt in prompts]
            if way == "batch":
                return _array(call(torch.cat(tokens), use_cache=False).logits[:, -1])
            return np.concatenate([_array(ask(one)) for one in tokens])

        def ask(tokens: Any) -> Any:
            length = tokens.shape[1]
            if way == "padded":
                padded = torch.cat([torch.zeros_like(tokens[:, :1]).expand(-1, PADDING), tokens], dim=1)
                mask = torch.ones_like(padded)
                mask[:, :PADDING] = 0
                places = (mask.cumsum(-1) - 1).clamp(min=0)
                return call(padded, attention_mask=mask, position_ids=places, use_cache=False).logits[:, -1]
            if way == "offset":
                places = torch.arange(length, device="cpu")[None] + OFFSET
                return call(tokens, position_ids=places, use_cache=False).logits[:, -1]
            if way in ("decode", "chunked"):
                size = length - 1 if way == "decode" else PART
                cache, answer = None, None
                for start in range(0, length, size):
                    part = call(tokens[:, start : start + size], past_key_values=cache, use_cache=True)
                    cache, answer = part.past_key_values, part.logits[:, -1]
                return answer
            return call(tokens, use_cache=False).logits[:, -1]

        return run

    return opened


def _array(logits: Any) -> Answers:
    found: Answers = logits.detach().double().cpu().numpy()
    return found


for _dtype in ("float32", "float64", "bfloat16", "float16"):
    for _attention in ("eager", "sdpa"):
        _format = (
            "float32" if _dtype == "float64" else _dtype
        )  # a stock Llama computes norms and frequencies in float32
        _name = f"transformers {_dtype} {_attention}"
        _add(_name, "transformers", _format, _transformers(_dtype, _attention))
        if _dtype == "float64" and _attention == "sdpa":
            continue
        for _way in WAYS[1:]:
            _add(
                f"{_name} {_way}",
                "transformers",
                _format,
                _transformers(_dtype, _attention, _way),
                offset=OFFSET if _way == "offset" else 0,
            )
_add("transformers float32 sdpa compiled", "transformers", "float32", _transformers("float32", "sdpa", compiled=True))
_add("transformers float32 flex", "transformers", "float32", _transformers("float32", "flex_attention"))


def _onnx_file(folder: Path) -> Path:
    """The checkpoint as ONNX, by torch's exporter."""
    path = folder / "model.onnx"
    if not path.exists():
        import torch
        from transformers import AutoModelForCausalLM

        class Logits(torch.nn.Module):
            def __init__(self, model: Any) -> None:
                super().__init__()
                self.model = model

            def forward(self, input_ids: Any) -> Any:
                return self.model(input_ids=input_ids, use_cache=False).logits

        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.eval()
        length = {"input_ids": {1: torch.export.Dim("length", min=2, max=4096)}}
        torch.onnx.export(
            Logits(model),
            (torch.zeros(1, 8, dtype=torch.long, device="cpu"),),
            path,
            dynamo=True,
            dynamic_shapes=length,
            external_data=False,
            input_names=["input_ids"],
            output_names=["logits"],
            verbose=False,
        )
    return path


def _onnxruntime(optimised: bool) -> Callable[[Path], Opened]:
    def opened(folder: Path) -> Opened:
        import onnxruntime

        options, levels = onnxruntime.SessionOptions(), onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(str(_onnx_file(folder)), options)
        return lambda prompts: np.stack([session.run(None, {"input_ids": np.array([p])})[0][0, -1] for p in prompts])

    return opened


_add("onnxruntime float32", "onnxruntime", "float32", _onnxruntime(True))
_add("onnxruntime float32 unoptimised", "onnxruntime", "float32", _onnxruntime(False))


def _openvino(hint: str) -> Callable[[Path], Opened]:
    def opened(folder: Path) -> Opened:
        import openvino

        core = openvino.Core()
        options = {"INFERENCE_PRECISION_HINT": hint} if hint else {}
        model = core.compile_model(core.read_model(_onnx_file(folder)), "CPU", options)
        return lambda prompts: np.stack([model([np.array([list(p)])])[0][0, -1] for p in prompts])

    return opened


_add("openvino float32", "openvino", "float32", _openvino("f32"))
_add("openvino default", "openvino", "float32", _openvino(""))
_add("openvino bfloat16", "openvino", "bfloat16", _openvino("bf16"))


def _ctranslate2(kind: str) -> Callable[[Path], Opened]:
    def opened(folder: Path) -> Opened:
        import ctranslate2

        converted = folder / "ctranslate2"
        if not converted.exists():
            ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted))
        model = ctranslate2.Generator(str(converted), device="cpu", compute_type=kind)
        return lambda prompts: np.stack([np.array(model.forward_batch([list(p)]))[0, -1] for p in prompts])

    return opened


_add("ctranslate2 float32", "ctranslate2", "float32", _ctranslate2("float32"))


def _llama_cpp(kind: str, cache: int, flash: bool, way: str = "prefill") -> Callable[[Path], Opened]:
    def opened(folder: Path) -> Opened:
        import llama_cpp

        from emulon.machine.targets.gguf import write_gguf

        path = folder / f"model-{kind}.gguf"
        if not path.exists():
            write_gguf(folder, path, kind)
        model = llama_cpp.Llama(
            model_path=str(path),
            n_ctx=512,
            n_batch=512,
            n_ubatch=512,
            logits_all=False,
            verbose=False,
            flash_attn=flash,
            type_k=cache,
            type_v=cache,
            n_threads=1,  # threads of ggml spin: beside other processes two are many times slower than one
            n_threads_batch=1,
        )

        def run(prompts: Prompts) -> Answers:
            answers = []
            for prompt in prompts:
                llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(model.ctx), True)
                tokens = list(prompt)
                parts = [tokens[:-1], tokens[-1:]] if way == "decode" else [tokens]
                place = 0
                for part in parts:
                    batch = llama_cpp.llama_batch_init(len(part), 0, 1)
                    batch.n_tokens = len(part)
                    for i, token in enumerate(part):
                        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, place + i, 1
                        batch.seq_id[i][0], batch.logits[i] = 0, i == len(part) - 1
                    place += len(part)
                    if llama_cpp.llama_decode(model.ctx, batch):
                        raise EmulonError("llama.cpp could not evaluate the prompt")
                    row = llama_cpp.llama_get_logits_ith(model.ctx, len(part) - 1)
                    answer = np.ctypeslib.as_array(row, (model.n_vocab(),)).copy()
                    llama_cpp.llama_batch_free(batch)
                answers.append(answer)
            return np.stack(answers)

        return run

    return opened


F32, F16, Q8 = 0, 1, 8  # ggml's numbers of types
_add("llama.cpp F32", "llama_cpp", "float32", _llama_cpp("F32", F32, False))
_add("llama.cpp F32 decode", "llama_cpp", "float32", _llama_cpp("F32", F32, False, "decode"))
_add("llama.cpp F32 flash", "llama_cpp", "float32", _llama_cpp("F32", F32, True))
_add("llama.cpp F32, cache f16 (default)", "llama_cpp", "float32", _llama_cpp("F32", F16, False))
_add("llama.cpp F32, cache q8_0, flash", "llama_cpp", "float32", _llama_cpp("F32", Q8, True))
_add("llama.cpp F16", "llama_cpp", "float16", _llama_cpp("F16", F32, False))
_add("llama.cpp BF16", "llama_cpp", "bfloat16", _llama_cpp("BF16", F32, False))
