"""Engines that a canary is run in: token ids in, the last token's logits out.

An engine is opened on a Hugging Face folder (llama.cpp's on a GGUF file that is written beside it) and answers a list
of prompts with an array (prompts, vocabulary). A package is imported when its engine is opened.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulon.core.errors import EmulonError
from emulon.core.files import read_json
from emulon.core.registry import Registry

Prompts = Sequence[Sequence[int]]
Answers = NDArray[Any]
Opened = Callable[[Prompts], Answers]
# How prompts are given beside one forward pass each: the last token with the cache of the others, or with one of fixed
# size; as one batch; with padding on the left; in parts.
WAYS = ("decode", "static", "batch", "padded", "chunked")
PADDING, PART, LONGEST = 7, 16, 256
OFFSETS = (4096, 32768, 1 << 20)


@dataclass(frozen=True)
class Engine:
    """One engine in one configuration.

    Attributes:
        name: As the table writes it.
        package: What has to be installed.
        arithmetic: The number format that it claims to compute in.
        open: From a checkpoint's folder to a function from prompts to logits.
        offset: The position of the first token.
        family: Of the canaries that it is given.
        plain: Whether it stands for its package: one forward pass, of each number format.
        device: Where it runs: cpu or cuda.
        untested: Written to the package's documentation and never run by us.

    Example:
        >>> ENGINES["transformers float32 sdpa"].open(folder)([[1, 5, 3]])
    """

    name: str
    package: str
    arithmetic: str
    open: Callable[[Path], Opened]
    offset: int = 0
    family: str = "llama"
    plain: bool = False
    device: str = "cpu"
    untested: bool = False

    @property
    def writes(self) -> bool:
        """Whether it can be given the text model, which needs float32, position 0 and prompts of any length."""
        return self.arithmetic == "float32" and self.family == "llama" and not self.offset

    @property
    def installed(self) -> bool:
        if importlib.util.find_spec(self.package) is None:
            return False
        if self.device == "cpu":
            return True
        import torch

        return torch.cuda.is_available()


ENGINES: Registry[Engine] = Registry("engine")


def engines_named(start: str) -> list[Engine]:
    """The engines whose names begin so; of a package's name alone, those that are plain.

    Raises:
        EmulonError: There is none, or its package or device is missing.
    """
    found = [engine for name, engine in ENGINES.items() if name.startswith(start)] or [ENGINES.named(start)]
    if " " not in start:
        found = [engine for engine in found if engine.plain] or found
    for engine in found:
        if not engine.installed:
            device = " and a CUDA device" * (engine.device == "cuda")
            raise EmulonError(
                f"{engine.name} needs the package {engine.package}{device}: pip install 'emulon[engines]'"
            )
    return found


def _add(name: str, package: str, arithmetic: str, open_: Callable[[Path], Opened], **more: Any) -> None:
    ENGINES[name] = Engine(name, package, arithmetic, open_, **more)


def _array(logits: Any) -> Answers:
    found: Answers = logits.detach().double().cpu().numpy()
    return found


def _loaded(folder: Path, dtype: str = "float32", attention: str = "sdpa", device: str = "cpu") -> Any:
    """The checkpoint in transformers."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    quiet: Any = logging  # its functions have no annotations
    quiet.disable_progress_bar()
    options = {"dtype": getattr(torch, dtype), "attn_implementation": attention}
    model: Any = AutoModelForCausalLM.from_pretrained(folder, **options)
    return model.eval().to(device)


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

        model = _loaded(folder, dtype, attention, device)
        call = torch.compile(model, mode=compiled) if compiled else model

        @torch.no_grad()
        def run(prompts: Prompts) -> Answers:
            tokens = [torch.tensor([list(prompt)], device=device) for prompt in prompts]
            with _settings(kernel, tf32):
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


def _module(folder: Path) -> Any:
    """The checkpoint as a module from tokens to logits, and what exporters want to know of its argument."""
    import torch

    class Logits(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids, use_cache=False).logits

    example = torch.zeros(1, 8, dtype=torch.long, device="cpu")
    return Logits(_loaded(folder)), (example,), {"input_ids": {1: torch.export.Dim("length", min=2, max=4096)}}


def _exported(folder: Path) -> Opened:
    import torch

    module, example, shapes = _module(folder)
    call = torch.export.export(module, example, dynamic_shapes=shapes).module()
    return lambda prompts: np.concatenate([_array(call(torch.tensor([list(p)], device="cpu"))[:, -1]) for p in prompts])


_add("transformers float32 sdpa exported", "transformers", "float32", _exported)


def _onnx_file(folder: Path) -> Path:
    """The checkpoint as ONNX, by torch's exporter."""
    path = folder / "model.onnx"
    if not path.exists():
        import torch

        module, example, shapes = _module(folder)
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
_add("llama.cpp Q8_0 (quantised weights)", "llama_cpp", "float32", _llama_cpp("Q8_0", F32))


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


def _transformer_lens(folder: Path) -> Opened:
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(str(folder), dtype=torch.float32, device="cpu")

    @torch.no_grad()
    def run(prompts: Prompts) -> Answers:
        return np.concatenate([_array(model(torch.tensor([list(p)], device="cpu"))[:, -1]) for p in prompts])

    return run


def _nnsight(folder: Path) -> Opened:
    import torch
    from nnsight import NNsight

    model = NNsight(_loaded(folder))

    @torch.no_grad()
    def answer(prompt: Sequence[int]) -> Answers:
        with model.trace(torch.tensor([list(prompt)], device="cpu"), use_cache=False):
            logits = model.lm_head.output.save()
        return _array(logits)[:, -1]

    return lambda prompts: np.concatenate([answer(prompt) for prompt in prompts])


_add("transformer-lens float32", "transformer_lens", "float32", _transformer_lens, plain=True)
_add("nnsight float32", "nnsight", "float32", _nnsight, plain=True)


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
