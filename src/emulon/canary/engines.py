"""Engines that a canary is run in: those of PyTorch, and here the others, by package.

llama.cpp's open a GGUF file that is written into the folder.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from emulon.canary.engine import ENGINES, LONGEST, OFFSETS, Answers, Engine, Opened, add, each
from emulon.canary.torch_engines import module_of
from emulon.core.errors import EmulonError, unknown
from emulon.core.files import read_json
from emulon.machine.targets.stock import Config

__all__ = ["ENGINES", "Engine", "engines_named"]


def _onnx_file(folder: Path) -> Path:
    """The checkpoint as ONNX, by torch's exporter."""
    path = folder / "model.onnx"
    if not path.exists():
        import torch

        module, example, shapes = module_of(folder)
        names: dict[str, Any] = {"input_names": ["input_ids"], "output_names": ["logits"]}
        options = {"dynamo": True, "dynamic_shapes": shapes, "external_data": False, "verbose": False}
        torch.onnx.export(module, example, path, **names, **options)
    return path


def _onnxruntime(folder: Path, optimised: bool = True) -> Opened:
    import onnxruntime

    options, levels = onnxruntime.SessionOptions(), onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(_onnx_file(folder)), options)
    return each(lambda prompt: session.run(None, {"input_ids": np.array([prompt])})[0][0, -1])


def _genai(folder: Path) -> Opened:
    import onnxruntime_genai

    made = folder / "genai"
    if not made.exists():
        words = ["-i", folder, "-o", made, "-p", "fp32", "-e", "cpu", "-c", folder / "cache"]
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", *map(str, words)]
        subprocess.run(command, check=True, capture_output=True)
    model = onnxruntime_genai.Model(str(made))

    def answer(prompt: Any) -> Answers:
        options = onnxruntime_genai.GeneratorParams(model)
        options.set_search_options(max_length=LONGEST)
        generator = onnxruntime_genai.Generator(model, options)
        generator.append_tokens(prompt)
        return np.asarray(generator.get_logits()[0, -1])

    return each(answer)


def _openvino(folder: Path, hint: str) -> Opened:
    import openvino

    core = openvino.Core()
    options = {"INFERENCE_PRECISION_HINT": hint} if hint else {}
    model = core.compile_model(core.read_model(_onnx_file(folder)), "CPU", options)
    return each(lambda prompt: model([np.array([prompt])])[0][0, -1])


def _ctranslate2(folder: Path) -> Opened:
    import ctranslate2

    converted = folder / "ctranslate2"
    if not converted.exists():
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted))
    model = ctranslate2.Generator(str(converted), device="cpu", compute_type="float32")
    return each(lambda prompt: np.array(model.forward_batch([prompt]))[0, -1])


for _end, _family in (("", "llama"), (" gpt2", "gpt2"), (" gpt_neox", "gpt_neox")):
    _more = {"plain": not _end, "family": _family}
    add(f"onnxruntime float32{_end}", "onnxruntime", "float32", _onnxruntime, **_more)
    add(f"openvino float32{_end}", "openvino", "float32", partial(_openvino, hint="f32"), **_more)
    add(f"ctranslate2 float32{_end}", "ctranslate2", "float32", _ctranslate2, **_more)
add("onnxruntime float32 unoptimised", "onnxruntime", "float32", partial(_onnxruntime, optimised=False))
add("onnxruntime-genai float32", "onnxruntime_genai", "float32", _genai, plain=True)
add("openvino default", "openvino", "float32", partial(_openvino, hint=""), plain=True)
add("openvino bfloat16", "openvino", "bfloat16", partial(_openvino, hint="bf16"), plain=True)

F32, F16, Q8, BF16 = 0, 1, 8, 30  # ggml's numbers of types


@cache
def _silence() -> Any:
    """Drop llama.cpp's log; the cache keeps the function, which must not be collected."""
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    return silent


def _llama_cpp(
    folder: Path, *, kind: str = "F32", cache: int = F32, flash: bool = False, way: str = "", offset: int = 0
) -> Opened:
    """`kind` is how matrices are stored, `cache` the type of keys and values."""
    import llama_cpp

    from emulon.machine.targets.gguf import write_gguf

    path = folder / f"model-{kind}.gguf"
    if not path.exists():
        write_gguf(folder, path, kind)
    _silence()
    options, sizes = llama_cpp.llama_model_default_params(), llama_cpp.llama_context_default_params()
    # Quantised matrices in another order are for AMX, which llama.cpp built by GCC 12 starts wrongly: docs/canaries.md.
    options.use_extra_bufts = False
    sizes.n_ctx = sizes.n_batch = sizes.n_ubatch = min(512, read_json(folder / "config.json").get("n_positions", 512))
    sizes.type_k = sizes.type_v = cache
    sizes.flash_attn_type = int(flash)
    sizes.n_threads = sizes.n_threads_batch = 1  # threads of ggml spin: beside other processes two are slower than one
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    context = llama_cpp.llama_init_from_model(model, sizes) if model else None
    if not context:
        size = Config.of(read_json(folder / "config.json")).head_dim
        reason = f": heads of {size} do not fill the cache's blocks of 32" if cache == Q8 and size % 32 else ""
        raise EmulonError(f"llama.cpp does not open this checkpoint with these options{reason}")
    words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def answer(prompt: Any) -> Answers:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        place = offset
        for part in [prompt[:-1], prompt[-1:]] if way == "decode" else [prompt]:
            batch = llama_cpp.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, place + i, 1
                batch.seq_id[i][0], batch.logits[i] = 0, i == len(part) - 1
            place += len(part)
            failed = llama_cpp.llama_decode(context, batch)
            llama_cpp.llama_batch_free(batch)
            if failed:
                raise EmulonError("llama.cpp could not evaluate the prompt")
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (words,)).copy()

    return each(answer)


def _add(name: str, arithmetic: str = "float32", *, plain: bool = False, family: str = "llama", **how: Any) -> None:
    open_, place = partial(_llama_cpp, **how), how.get("offset", 0)
    add(f"llama.cpp {name}", "llama_cpp", arithmetic, open_, plain=plain, offset=place, family=family)


_add("F32", plain=True)
_add("F32 decode", way="decode")
for _offset in OFFSETS:
    _add(f"F32 at {_offset}", offset=_offset)
_add("F32 flash", plain=True, flash=True)
_add("F32 flash decode", flash=True, way="decode")
_add("F32, cache f16 (default)", plain=True, cache=F16)
_add("F32, cache bf16", cache=BF16)
_add("F32, cache q8_0, flash", cache=Q8, flash=True)
_add("F16", "float16", plain=True, kind="F16")
_add("BF16", "bfloat16", plain=True, kind="BF16")
# Its blocks of 32 have scales of float16, which the smaller pad fits.
_add("Q8_0", "float16", plain=True, kind="Q8_0")
for _family in ("gpt2", "gpt_neox"):
    _add(f"F32 {_family}", family=_family)
    _add(f"F32 decode {_family}", family=_family, way="decode")
    _add(f"F16 {_family}", "float16", family=_family, kind="F16")


def _mlx(folder: Path, dtype: str, told: bool = True) -> Opened:
    """mlx-lm takes the rotary base from an entry of config.json that transformers 5 does not write: `told` says it."""
    import mlx.core
    from mlx_lm.utils import load_model

    mlx.core.set_default_device(mlx.core.cpu)
    rotary = read_json(folder / "config.json")["rope_parameters"] if told else {}
    model, _ = load_model(folder, model_config=rotary)
    model.set_dtype(getattr(mlx.core, dtype))
    return each(lambda prompt: np.asarray(model(mlx.core.array([prompt]))[0, -1].astype(mlx.core.float32)))


for _dtype in ("float32", "bfloat16", "float16"):
    add(f"mlx {_dtype}", "mlx_lm", _dtype, partial(_mlx, dtype=_dtype), plain=True)
add("mlx default (float32)", "mlx_lm", "float32", partial(_mlx, dtype="float32", told=False), plain=True)


def engines_named(start: str) -> list[Engine]:
    """The engines whose names begin so; of a package's name alone, those that are plain.

    Raises:
        EmulonError: There is none, or its package or device is missing.
    """
    found = [engine for name, engine in ENGINES.items() if name.startswith(start)]
    if not found:
        packages = {name.partition(" ")[0] for name in ENGINES}
        raise EmulonError(unknown("engine", start, ENGINES if start.partition(" ")[0] in packages else packages))
    if " " not in start:
        found = [engine for engine in found if engine.plain] or found
    for engine in found:
        if not engine.installed:
            device = " and a CUDA device" * (engine.device == "cuda")
            raise EmulonError(
                f"{engine.name} needs the package {engine.package}{device}: pip install 'emulon[engines]'"
            )
    return found
