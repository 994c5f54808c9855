"""Engines beside PyTorch, by package. llama.cpp's open a GGUF file that is written into the folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from emulon.canary.engine import LONGEST, OFFSETS, Answers, Engine, Opened, Prompts, module_of
from emulon.core.errors import EmulonError
from emulon.core.files import read_json

FOUND: list[Engine] = []


def _add(name: str, package: str, arithmetic: str, open_: Callable[[Path], Opened], **more: Any) -> None:
    FOUND.append(Engine(name, package, arithmetic, open_, **more))


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


def _onnxruntime(optimised: bool) -> Callable[[Path], Opened]:
    def opened(folder: Path) -> Opened:
        import onnxruntime

        options, levels = onnxruntime.SessionOptions(), onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(str(_onnx_file(folder)), options)
        return lambda prompts: np.stack([session.run(None, {"input_ids": np.array([p])})[0][0, -1] for p in prompts])

    return opened


_add("onnxruntime float32", "onnxruntime", "float32", _onnxruntime(True), plain=True)
_add("onnxruntime float32 unoptimised", "onnxruntime", "float32", _onnxruntime(False))


def _genai(folder: Path) -> Opened:
    import onnxruntime_genai

    made = folder / "genai"
    if not made.exists():
        words = ["-i", folder, "-o", made, "-p", "fp32", "-e", "cpu", "-c", folder / "cache"]
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", *map(str, words)]
        subprocess.run(command, check=True, capture_output=True)
    model = onnxruntime_genai.Model(str(made))

    def answer(prompt: Sequence[int]) -> Answers:
        options = onnxruntime_genai.GeneratorParams(model)
        options.set_search_options(max_length=LONGEST)
        generator = onnxruntime_genai.Generator(model, options)
        generator.append_tokens(list(prompt))
        return np.asarray(generator.get_logits()[0, -1])

    return lambda prompts: np.stack([answer(prompt) for prompt in prompts])


_add("onnxruntime-genai float32", "onnxruntime_genai", "float32", _genai, plain=True)


def _openvino(hint: str) -> Callable[[Path], Opened]:
    def opened(folder: Path) -> Opened:
        import openvino

        core = openvino.Core()
        options = {"INFERENCE_PRECISION_HINT": hint} if hint else {}
        model = core.compile_model(core.read_model(_onnx_file(folder)), "CPU", options)
        return lambda prompts: np.stack([model([np.array([list(p)])])[0][0, -1] for p in prompts])

    return opened


_add("openvino float32", "openvino", "float32", _openvino("f32"), plain=True)
_add("openvino default", "openvino", "float32", _openvino(""), plain=True)
_add("openvino bfloat16", "openvino", "bfloat16", _openvino("bf16"), plain=True)


def _ctranslate2(kind: str) -> Callable[[Path], Opened]:
    def opened(folder: Path) -> Opened:
        import ctranslate2

        converted = folder / "ctranslate2"
        if not converted.exists():
            ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted))
        model = ctranslate2.Generator(str(converted), device="cpu", compute_type=kind)
        return lambda prompts: np.stack([np.array(model.forward_batch([list(p)]))[0, -1] for p in prompts])

    return opened


_add("ctranslate2 float32", "ctranslate2", "float32", _ctranslate2("float32"), plain=True)


def _llama_cpp(kind: str, cache: int, flash: bool = False, way: str = "", offset: int = 0) -> Callable[[Path], Opened]:
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
                place = offset
                for part in [tokens[:-1], tokens[-1:]] if way == "decode" else [tokens]:
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


F32, F16, Q8, BF16 = 0, 1, 8, 30  # ggml's numbers of types
_add("llama.cpp F32", "llama_cpp", "float32", _llama_cpp("F32", F32), plain=True)
_add("llama.cpp F32 decode", "llama_cpp", "float32", _llama_cpp("F32", F32, way="decode"))
for _offset in OFFSETS:
    _open = _llama_cpp("F32", F32, offset=_offset)
    _add(f"llama.cpp F32 at {_offset}", "llama_cpp", "float32", _open, offset=_offset)
_add("llama.cpp F32 flash", "llama_cpp", "float32", _llama_cpp("F32", F32, True), plain=True)
_add("llama.cpp F32 flash decode", "llama_cpp", "float32", _llama_cpp("F32", F32, True, "decode"))
_add("llama.cpp F32, cache f16 (default)", "llama_cpp", "float32", _llama_cpp("F32", F16), plain=True)
_add("llama.cpp F32, cache bf16", "llama_cpp", "float32", _llama_cpp("F32", BF16))
_add("llama.cpp F32, cache q8_0, flash", "llama_cpp", "float32", _llama_cpp("F32", Q8, True))
_add("llama.cpp F16", "llama_cpp", "float16", _llama_cpp("F16", F32), plain=True)
_add("llama.cpp BF16", "llama_cpp", "bfloat16", _llama_cpp("BF16", F32), plain=True)


def _mlx(dtype: str, told: bool = True) -> Callable[[Path], Opened]:
    """mlx-lm takes the rotary base from an entry of config.json that transformers 5 does not write: `told` says it."""

    def opened(folder: Path) -> Opened:
        import mlx.core
        from mlx_lm.utils import load_model

        mlx.core.set_default_device(mlx.core.cpu)
        more = {"rope_theta": read_json(folder / "config.json")["rope_parameters"]["rope_theta"]} if told else {}
        model, _ = load_model(folder, model_config=more)
        model.set_dtype(getattr(mlx.core, dtype))

        def answer(prompt: Sequence[int]) -> Answers:
            return np.asarray(model(mlx.core.array([list(prompt)]))[0, -1].astype(mlx.core.float32))

        return lambda prompts: np.stack([answer(prompt) for prompt in prompts])

    return opened


for _dtype in ("float32", "bfloat16", "float16"):
    _add(f"mlx {_dtype}", "mlx_lm", _dtype, _mlx(_dtype), plain=True)
_add("mlx default (float32)", "mlx_lm", "float32", _mlx("float32", told=False), plain=True)


def _vllm(dtype: str) -> Callable[[Path], Opened]:
    def opened(folder: Path) -> Opened:
        import vllm

        options = {"skip_tokenizer_init": True, "logprobs_mode": "raw_logits", "max_logprobs": -1}
        model = vllm.LLM(model=str(folder), dtype=dtype, max_model_len=LONGEST, **options)
        asked = vllm.SamplingParams(max_tokens=1, temperature=0, logprobs=-1, detokenize=False)

        def run(prompts: Prompts) -> Answers:
            found = model.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], asked)
            answers = [one.outputs[0].logprobs[0] for one in found]
            return np.array([[answer[i].logprob for i in sorted(answer)] for answer in answers])

        return run

    return opened


def _sglang(dtype: str) -> Callable[[Path], Opened]:
    def opened(folder: Path) -> Opened:
        import sglang

        model = sglang.Engine(model_path=str(folder), dtype=dtype, skip_tokenizer_init=True)

        def run(prompts: Prompts) -> Answers:
            tokens = [list(prompt) for prompt in prompts]
            options = {"return_logprob": True, "top_logprobs_num": 1024}
            found = model.generate(input_ids=tokens, sampling_params={"max_new_tokens": 1}, **options)
            tables = [
                sorted((at, value) for value, at, _ in one["meta_info"]["output_top_logprobs"][0]) for one in found
            ]
            values = np.array([[value for _, value in table] for table in tables])
            # It gives logarithms of probabilities; the last logit of a canary is 0.
            return np.asarray(values - values[:, -1:])

        return run

    return opened


for _dtype in ("float32", "bfloat16", "float16"):
    for _name, _make in (("vllm", _vllm), ("sglang", _sglang)):
        _add(f"{_name} {_dtype}", _name, _dtype, _make(_dtype), device="cuda", untested=True, plain=True)
