"""The numbers of docs/performance.md: `python -m benchmarks.performance` measures all, or the parts that are named.

    python -m benchmarks.performance startup text --llama FOLDER

Every part writes results/bench/PART.json with machine, commit and time; the site reads them when it is built. Times are
CPU seconds of one thread, the least of several rounds in which everything compared takes its turn, so that what else
the machine does counts little. `text` runs the engines that are installed and keeps the rows of others, so that engines
may be measured from an environment of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from emulon.core.errors import EmulonError, unknown
from emulon.core.files import provenance, read_json, write_json
from reproduce.arguments import Arguments, Progress, run_script

RESULTS = Path(__file__).parents[1] / "results" / "bench"
REPEATS = 3
# Commands whose start is measured; the first two are what no command can do without.
COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import torch": [sys.executable, "-c", "import torch"],
    "emulon --help": [sys.executable, "-m", "emulon.cli", "--help"],
    "emulon run ridge": [sys.executable, "-m", "emulon.cli", "run", "ridge", "--quiet", "--out", "page"],
    "emulon run lasso": [sys.executable, "-m", "emulon.cli", "run", "lasso", "--quiet", "--out", "page"],
}
# Rows, features and steps of the prompt that is written out as text.
ROWS, FEATURES, STEPS, BATCH = 20, 4, 2, 8
PLANTED = {"sgd": (2, 4, 8, 16), "ridge": (2, 4, 8)}
WIDTHS, DEPTHS = (32, 64, 128, 256), (1, 2, 4, 8)


def rounds(works: Mapping[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, float]:
    """The least CPU seconds of each, after a round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(repeats + 1):
        for name, work in works.items():
            begin = time.process_time()
            work()
            if number:
                taken[name].append(time.process_time() - begin)
    return {name: min(each) for name, each in taken.items()}


def startup(asked: Any) -> list[dict[str, Any]]:
    """Seconds and megabytes of whole processes."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, command in COMMANDS.items():
            found = []
            for _ in range(REPEATS + 1):
                begin = time.perf_counter()
                process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env=_environment())
                _, status, used = os.wait4(process.pid, 0)
                if status:
                    raise EmulonError(f"{' '.join(command)} failed with status {status}")
                found.append((time.perf_counter() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024))
            wall, cpu, memory = map(min, zip(*found, strict=True))
            rows.append({"what": name, "seconds": wall, "cpu_seconds": cpu, "megabytes": memory})
    return rows


def _environment() -> dict[str, str]:
    root = str(RESULTS.parents[1] / "src")
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
    }


def text(asked: Any) -> list[dict[str, Any]]:
    """Tokens a second of the text interpreter on one prompt, however it is decoded; and an iteration by attention."""
    import numpy as np
    import torch

    from emulon import Interpreter, compile, language
    from emulon.algorithms import Ridge

    if asked.llama is None:
        raise EmulonError("text needs --llama FOLDER, as `emulon llama write FOLDER` makes it")
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, FEATURES)).clip(-2, 2)
    y = x @ draw.uniform(-1, 1, size=FEATURES) + 0.1 * draw.normal(size=ROWS)
    method = Ridge(0.1, steps=STEPS)
    prompt = language.text_of(language.prompt(method, x, y))
    model = language.load(asked.llama)
    words, (said,) = model.vocabulary, model.complete([prompt], "drafted")
    tokens = words.encode(prompt)
    count = len(said.split()) + 1  # and the word that ends it
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        "plain generate()": (1, lambda: model.complete([prompt])),
        "structure words in blocks": (1, lambda: model.complete([prompt], "drafted")),
        "static cache": (1, partial(_static, model, tokens, count)),
        f"plain generate(), batch of {BATCH}": (BATCH, lambda: model.complete([prompt] * BATCH)),
        f"structure words in blocks, batch of {BATCH}": (BATCH, lambda: model.complete([prompt] * BATCH, "drafted")),
    }
    rows = []
    for name, (size, work) in ways.items():
        seconds = rounds({name: work}, 2)[name]
        rows.append(_text_row(name, size * count / seconds, seconds / STEPS / size))
    for name, (module, decode) in {
        "llama.cpp": ("llama_cpp", _llama_cpp),
        "onnxruntime-genai": ("onnxruntime_genai", _genai),
    }.items():
        if _installed(module):
            run = decode(Path(asked.llama), tokens, count)
            same = words.decode(run()).removesuffix("</s>").strip() == said.strip()
            seconds = rounds({name: run}, 2)[name]
            rows.append(_text_row(name, count / seconds, seconds / STEPS, same))
    data = torch.from_numpy(x), torch.from_numpy(y)
    program = compile(Ridge(0.1, steps=200), data=data)
    interpreter = Interpreter.fitting(program)
    found = rounds(
        {
            "the attention-only interpreter": lambda: interpreter.run(program, *data),
            "the exact algorithm": lambda: Ridge(0.1, steps=200).run(*data),
        }
    )
    return rows + [_text_row(name, None, seconds / 200) for name, seconds in found.items()]


def _text_row(name: str, rate: float | None, iteration: float, same: bool = True) -> dict[str, Any]:
    return {"way": name, "tokens_per_second": rate, "seconds_per_iteration": iteration, "same_text": same}


def _installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def _static(model: Any, tokens: list[int], count: int) -> object:
    import torch

    settings = {"cache_implementation": "static", "disable_compile": True, "max_new_tokens": count, "do_sample": False}
    with torch.no_grad():
        return model.network.generate(torch.tensor([tokens], device="cpu"), **settings)


def _llama_cpp(folder: Path, tokens: list[int], count: int) -> Callable[[], list[int]]:
    """Greedy decoding of a float32 GGUF file with a float32 cache."""
    import llama_cpp

    from emulon.machine.targets.gguf import write_gguf

    path = folder / "model-F32.gguf"
    if not path.exists():
        write_gguf(folder, path, "F32")
    size = len(tokens) + count + 8
    options = {"n_ctx": size, "n_batch": size, "type_k": 0, "type_v": 0, "n_threads": 1, "n_threads_batch": 1}
    model = llama_cpp.Llama(model_path=str(path), verbose=False, **options)

    def run() -> list[int]:
        model.reset()
        written: list[int] = []
        for token in model.generate(tokens, temp=0.0, repeat_penalty=1.0):
            if len(written) == count:
                break
            written.append(token)
        return written

    return run


def _genai(folder: Path, tokens: list[int], count: int) -> Callable[[], list[int]]:
    """Greedy decoding of the float32 model that onnxruntime-genai's builder makes."""
    import onnxruntime_genai as genai

    made = folder / "genai"
    if not made.exists():
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(folder), "-o", str(made)]
        subprocess.run(
            [*builder, "-p", "fp32", "-e", "cpu", "-c", str(folder / "builder")], check=True, capture_output=True
        )
    config = read_json(made / "genai_config.json")
    config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = 1
    write_json(made / "genai_config.json", config)
    model = genai.Model(str(made))

    def run() -> list[int]:
        asked = genai.GeneratorParams(model)
        asked.set_search_options(max_length=len(tokens) + count, do_sample=False)
        generator = genai.Generator(model, asked)
        generator.append_tokens(tokens)
        while not generator.is_done():
            generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)][len(tokens) :]

    return run


def planted(asked: Any) -> list[dict[str, Any]]:
    """Planted models: seconds to make one, and to answer 64 datasets, beside the algorithm itself."""
    from emulon import planted

    rows = []
    for mechanism, sizes in PLANTED.items():
        for features in sizes:
            make = partial(planted.plant, mechanism, features=features, samples=8)
            model = make()
            data = model.draw(batch=64, seed=0)
            works: dict[str, Callable[[], object]] = {
                "made": make,
                "answer": partial(model, *data),
                "exact": partial(model.algorithm, *data),
            }
            shape = {"mechanism": mechanism, "features": features, "blocks": model.truth.blocks}
            rows.append(shape | {"width": model.truth.width} | rounds(works))
    return rows


def training(asked: Any) -> list[dict[str, Any]]:
    """Steps of the training loop beside Hugging Face's, by width and depth, and the matrix products alone."""
    import torch

    from emulon.training import TrainConfig
    from reproduce.ours.training import HUGGING_FACE, make_step

    torch.set_num_threads(1)
    device, square = torch.device("cpu"), torch.randn(512, 512, device="cpu")
    products = 2 * 512**3 / rounds({"product": lambda: [square @ square for _ in range(20)]})["product"] * 20
    rows = []
    for width, layers in (*((width, 2) for width in WIDTHS), *((64, layers) for layers in DEPTHS if layers != 2)):
        sizes = {"features": 8, "points": 17, "layers": layers, "width": width, "heads": 4, "batch": 32}
        config = TrainConfig.of(task="linear", lr=1e-4, clip=0.0, **sizes)
        works: dict[str, Callable[[], object]] = {}
        for name, way in {"ours": "plain PyTorch, eager fp32", "hugging face": HUGGING_FACE}.items():
            works[name] = partial(_steps, make_step(way, config, device), 5)
        parameters = 12 * layers * width**2
        # forward one, backward two products, of two operations for each parameter and token
        found = {name: seconds / 5 for name, seconds in rounds(works).items()}
        found["products"] = 6 * parameters * config.make_task().tokens * sizes["batch"] / products
        rows.append({"width": width, "layers": layers} | found)
    return rows


def _steps(step: Callable[[int], object], count: int) -> None:
    for number in range(count):
        step(number)


PARTS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "startup": startup,
    "text": text,
    "planted": planted,
    "training": training,
}
# Measured by scripts of their own.
OTHERS = {"runs": "benchmarks.bench", "rows": "benchmarks.bench", "networks": "benchmarks.networks"}


def arguments() -> Arguments:
    parser = Arguments("benchmarks.performance", "Measure the numbers of docs/performance.md again.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all of {', '.join([*PARTS, *OTHERS])}")
    parser.add_argument("--llama", metavar="FOLDER", help="the stock Llama, for text")
    return parser


def main(words: Sequence[str]) -> int:
    options = arguments().read(words)
    progress = Progress("performance")
    parts = options.parts or [*PARTS, *OTHERS]
    for done, name in enumerate(parts):
        if name not in {**PARTS, **OTHERS}:
            raise EmulonError(unknown("part", name, {**PARTS, **OTHERS}))
        progress(name, done / len(parts))
        file = RESULTS / f"{name}.json"
        if name in OTHERS:
            benchmark = [name] if OTHERS[name] == "benchmarks.bench" else []
            subprocess.run([sys.executable, "-m", OTHERS[name], *benchmark, "--json", str(file)], check=True)
            continue
        rows = PARTS[name](options)
        kept = read_json(file)["rows"] if name == "text" and file.exists() else []
        measured = {row["way"] for row in rows} if name == "text" else set()
        write_json(file, provenance() | {"rows": rows + [row for row in kept if row["way"] not in measured]})
    return 0


if __name__ == "__main__":
    sys.exit(run_script("benchmarks.performance", main, sys.argv[1:]))
