"""The numbers of docs/performance.md: `python -m benchmarks.performance` measures all, or the parts that are named.

    python -m benchmarks.performance startup text --llama FOLDER

Every part writes results/bench/PART.json with machine, commit and time; the site reads them when it is built. Seconds
are those of one processor, after a round that does not count; what is compared takes its turn in every round, so that
what else the machine does counts little. `text` runs the engines that are installed and keeps the rows of others, so
that engines may be measured from an environment of their own.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from emulon import algorithms, language, planted
from emulon.algorithms import Ridge
from emulon.core.errors import EmulonError, unknown
from emulon.core.files import provenance, read_json, write_json
from emulon.interpreter import Interpreter, compile
from emulon.interpreter.modes import CachedPhase
from emulon.networks import compile_network
from emulon.report.terminal import say, table
from emulon.training import TrainConfig
from reproduce.arguments import Arguments, Progress, run_script
from reproduce.claim import Setting
from reproduce.emulation import section_4_3
from reproduce.ours.learners import HUGGING_FACE, make_step

ROOT = Path(__file__).parents[1]
Rows = list[dict[str, Any]]
Work = Callable[[], object]
REPEATS = 3
# Commands whose start is measured; the first two are what no command can do without.
COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import torch": [sys.executable, "-c", "import torch"],
    "emulon --help": [sys.executable, "-m", "emulon.cli", "--help"],
    "emulon run ridge": [sys.executable, "-m", "emulon.cli", "run", "ridge", "--quiet", "--report", "page"],
    "emulon run lasso": [sys.executable, "-m", "emulon.cli", "run", "lasso", "--quiet", "--report", "page"],
}
# Whole runs: algorithm, rows, features.
SIX = ("Ridge", "Lasso", "Fista", "HuberRegression", "LogisticRegression", "LogCoshRegression")
RUNS = [
    *((name, rows, 20) for rows in (10_000, 100_000) for name in SIX),
    ("Lasso", 500, 300),
    *(("Ridge", *shape) for shape in ((500, 600), (5000, 500))),
]
GROWING = (1_000, 10_000, 100_000, 1_000_000)
# Of the learner, whose audit takes a second a row, few.
EXAMPLES, FEW_EXAMPLES = 256, 16
# Rows, features and steps of the prompt that is written out as text.
ROWS, FEATURES, STEPS, BATCH = 20, 4, 2, 8
PLANTED = {"sgd": (2, 4, 8, 16), "ridge": (2, 4, 8)}
WIDTHS, DEPTHS = (32, 64, 128, 256), (1, 2, 4, 8)


def rounds(works: Mapping[str, Work], repeats: int = REPEATS) -> dict[str, list[float]]:
    """CPU seconds of each, in turn, after a round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(repeats + 1):
        for name, work in works.items():
            begin = time.process_time()
            work()
            if number:
                taken[name].append(time.process_time() - begin)
    return taken


def fastest(works: Mapping[str, Work], repeats: int = REPEATS) -> dict[str, float]:
    return {name: min(taken) for name, taken in rounds(works, repeats).items()}


def ratio(above: list[float], below: list[float]) -> float:
    """The median of the ratios of neighbours in time: what slows one of them slows both."""
    return median([a / b for a, b in zip(above, below, strict=True)])


def audited(made: dict[str, Any]) -> object:
    return made["run"].audit.bound


def startup(asked: Any) -> Rows:
    """Seconds and megabytes of whole processes."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment, rows = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}, []
    with tempfile.TemporaryDirectory() as folder:
        for name, command in COMMANDS.items():
            found = []
            for _ in range(REPEATS + 1):
                begin = time.perf_counter()
                process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env=environment)
                _, status, used = os.wait4(process.pid, 0)
                if status:
                    raise EmulonError(f"{' '.join(command)} failed with status {status}")
                found.append((time.perf_counter() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024))
            wall, cpu, memory = map(min, zip(*found, strict=True))
            rows.append({"what": name, "seconds": wall, "cpu_seconds": cpu, "megabytes": memory})
    return rows


def noisy(name: str, samples: int, features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal numbers, and a plane through them with noise half as large, or its sign."""
    draw = torch.Generator().manual_seed(0)
    x, w, noise = (
        torch.randn(shape, generator=draw, dtype=torch.float64, device="cpu")
        for shape in ((samples, features), (features,), (samples,))
    )
    y = x @ w / math.sqrt(features) + 0.5 * noise
    return x, torch.where(y > 0, 1.0, -1.0).to(y.dtype) if name == "LogisticRegression" else y


def runs(asked: Any) -> Rows:
    """Whole runs of 200 steps on noisy data, each beside the exact algorithm, and audits beside runs."""
    rows: Rows = []
    for name, samples, features in RUNS:
        what = f"{name}, 200 steps, {samples:,} × {features:,}"
        algorithm, data, made = getattr(algorithms, name)(steps=200), noisy(name, samples, features), dict[str, Any]()
        program = compile(algorithm, data=data)
        machine = Interpreter.fitting(program)

        def run(machine: Any = machine, program: Any = program, data: Any = data, made: Any = made) -> None:
            made["run"] = machine.run(program, *data)

        works: dict[str, Work] = {"run": run, "exact": partial(algorithm.run, *data), "audit": partial(audited, made)}
        taken = rounds(works, 2 if samples <= 10_000 else 1)
        rows += [
            {"what": what, "seconds": median(taken["run"]), "ratio": ratio(taken["run"], taken["exact"])},
            {"what": f"{what}: the exact algorithm", "seconds": median(taken["exact"]), "ratio": 1.0},
            {
                "what": f"{what}: the audit, beside the run",
                "seconds": median(taken["audit"]),
                "ratio": ratio(taken["audit"], taken["run"]),
            },
        ]
    return rows


def step(asked: Any) -> Rows:
    """What a step on 100,000 × 20 numbers is made of, beside reading the data twice, as plain descent does."""
    rows: Rows = []
    for name in ("Ridge", "HuberRegression", "LogisticRegression"):
        x, y = noisy(name, 100_000, 20)
        program, w = compile(getattr(algorithms, name)(steps=200), data=(x, y)), x.new_full((1, x.shape[-1]), 0.01)
        begin = time.process_time()
        steps = program.steps_on(Interpreter.fitting(program), program.loss.template_data(x, y), "fast")
        reading, phase = time.process_time() - begin, steps.gradient
        assert isinstance(phase, CachedPhase) and phase.lazy
        works = _parts_of_step(steps, phase, w)
        taken = rounds(works, 5)
        first = taken[next(iter(works))]
        rows += [
            {"what": f"{name}: {part}", "seconds": median(each), "ratio": ratio(each, first)}
            for part, each in taken.items()
        ]
        rows.append({"what": f"{name}: reading the data, once", "seconds": reading})
    return rows


def _parts_of_step(steps: Any, phase: Any, w: torch.Tensor) -> dict[str, Work]:
    asked = [phase._residuals(block, w) for block in phase.blocks]
    return {
        "X·w and Xᵀ·v, part by part": lambda: [(block.x[0] @ w[0]) @ block.x[0] for block in phase.blocks],
        "an exponential for every row": lambda: [each.exp() for each in asked],
        "w·x − y": lambda: [phase._residuals(block, w) for block in phase.blocks],
        "the softmax, and its sum with x": lambda: phase._summed(phase._plain, w),
        "a whole step": lambda: steps.step(w[0], w[0]),
        "what reading changes, by all keys": lambda: phase._summed(phase._correction, w),
    }


def rows(asked: Any) -> Rows:
    """200 steps of ridge on up to a million rows of ten: time and memory, each in a process of its own."""
    found: Rows = []
    for count in GROWING:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            found.append(process.submit(size, count).result())
    return found


def size(count: int) -> dict[str, Any]:
    """Seconds, and the most memory held, in GB above what importing takes."""

    def held() -> float:
        """Linux counts kilobytes, macOS bytes."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (1e9 if sys.platform == "darwin" else 1e6)

    before = held()
    x = torch.randn(count, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    y = x.sum(dim=-1) + x[:, 0].sin()
    program = compile(Ridge(steps=200), data=(x, y))
    begin = time.perf_counter()
    Interpreter.fitting(program).run(program, x, y)
    return {"rows": count, "seconds": time.perf_counter() - begin, "gigabytes": max(held() - before, 1e-3)}


def networks(asked: Any) -> Rows:
    """Networks by prompt beside PyTorch, and their audits beside their runs; programs are there before."""
    setting = Setting({"rows": EXAMPLES, "prompts": EXAMPLES}, results=ROOT / "results")
    torch.manual_seed(0)
    cases = section_4_3.perceptrons(setting) | section_4_3.others(setting)
    encoder = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True).double().eval()
    cases["encoder layer"] = encoder, torch.randn(EXAMPLES, 8, 16, dtype=torch.float64, device="cpu")
    cases["trained learner"] = section_4_3.learner_case(setting)
    found: Rows = []
    for name, (network, data) in cases.items():
        program = compile_network(network, data=data, margin=0.5)
        interpreter, plain = Interpreter.fitting(program), copy.deepcopy(network).double()
        x, made = data[: FEW_EXAMPLES if name == "trained learner" else EXAMPLES], dict[str, Any]()

        def forward(plain: Any = plain, x: Any = x) -> None:
            with torch.no_grad():
                for _ in range(10):
                    plain(x)

        def run(made: Any = made, interpreter: Any = interpreter, program: Any = program, x: Any = x) -> None:
            made["run"] = interpreter.run(program, x)

        works: dict[str, Work] = {"pytorch": forward, "run": run, "audit": partial(audited, made)}
        taken = rounds(works, 4)
        taken["pytorch"] = [each / 10 for each in taken["pytorch"]]
        row = {"network": name, "rows": len(x)} | {part: median(each) for part, each in taken.items()}
        for above, below in (("run", "pytorch"), ("audit", "run")):
            row[f"{above} / {below}"] = ratio(taken[above], taken[below])
        found.append(row)
    return found


def text(asked: Any) -> Rows:
    """Tokens a second of the text interpreter on one prompt, however it is decoded; and an iteration by attention."""
    if asked.llama is None:
        raise EmulonError("text needs --llama FOLDER, as `emulon llama write FOLDER` makes it")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, FEATURES)).clip(-2, 2)
    y = x @ draw.uniform(-1, 1, size=FEATURES) + 0.1 * draw.normal(size=ROWS)
    method = Ridge(0.1, steps=STEPS)
    prompt = language.text_of(language.prompt(method, x, y))
    model = language.load(asked.llama)
    words, (said,) = model.vocabulary, model.complete([prompt], "drafted")
    tokens = words.encode(prompt)
    count = len(said.split()) + 1  # and the word that ends it
    ways: dict[str, tuple[int, Work]] = {
        "plain generate()": (1, lambda: model.complete([prompt])),
        "structure words in blocks": (1, lambda: model.complete([prompt], "drafted")),
        "static cache": (1, partial(_static, model, tokens, count)),
        f"plain generate(), batch of {BATCH}": (BATCH, lambda: model.complete([prompt] * BATCH)),
        f"structure words in blocks, batch of {BATCH}": (BATCH, lambda: model.complete([prompt] * BATCH, "drafted")),
    }
    found = []
    for name, (batch, work) in ways.items():
        seconds = fastest({name: work}, 2)[name]
        found.append(_text_row(name, batch * count / seconds, seconds / STEPS / batch))
    for name, (module, decode) in {
        "llama.cpp": ("llama_cpp", _llama_cpp),
        "onnxruntime-genai": ("onnxruntime_genai", _genai),
    }.items():
        if find_spec(module) is not None:
            run = decode(Path(asked.llama), tokens, count)
            same = words.decode(run()).removesuffix("</s>").strip() == said.strip()
            seconds = fastest({name: run}, 2)[name]
            found.append(_text_row(name, count / seconds, seconds / STEPS, same))
    data = torch.from_numpy(x), torch.from_numpy(y)
    program = compile(Ridge(0.1, steps=200), data=data)
    interpreter = Interpreter.fitting(program)
    others = {
        "the attention-only interpreter": lambda: interpreter.run(program, *data),
        "the exact algorithm": lambda: Ridge(0.1, steps=200).run(*data),
    }
    return found + [_text_row(name, None, seconds / 200) for name, seconds in fastest(others).items()]


def _text_row(name: str, rate: float | None, iteration: float, same: bool = True) -> dict[str, Any]:
    return {"way": name, "tokens_per_second": rate, "seconds_per_iteration": iteration, "same_text": same}


def _static(model: Any, tokens: list[int], count: int) -> object:
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


def planted_models(asked: Any) -> Rows:
    """Planted models: seconds to make one, and to answer 64 datasets, beside the algorithm itself."""
    found: Rows = []
    for mechanism, sizes in PLANTED.items():
        for features in sizes:
            make = partial(planted.plant, mechanism, features=features, samples=8)
            model = make()
            data = model.draw(batch=64, seed=0)
            works: dict[str, Work] = {
                "made": make,
                "answer": partial(model, *data),
                "exact": partial(model.algorithm, *data),
            }
            shape = {"mechanism": mechanism, "features": features, "blocks": model.truth.blocks}
            found.append(shape | {"width": model.truth.width} | fastest(works))
    return found


def training(asked: Any) -> Rows:
    """Steps of the training loop beside Hugging Face's, by width and depth, and the matrix products alone."""
    device, square = torch.device("cpu"), torch.randn(512, 512, device="cpu")
    products = 2 * 512**3 / fastest({"product": lambda: [square @ square for _ in range(20)]})["product"] * 20
    found: Rows = []
    for width, layers in (*((width, 2) for width in WIDTHS), *((64, layers) for layers in DEPTHS if layers != 2)):
        sizes = {"features": 8, "points": 17, "layers": layers, "width": width, "heads": 4, "batch": 32}
        config = TrainConfig.of(task="linear", lr=1e-4, clip=0.0, **sizes)
        works: dict[str, Work] = {}
        for name, way in {"ours": "plain PyTorch, eager fp32", "hugging face": HUGGING_FACE}.items():
            works[name] = partial(_steps, make_step(way, config, device), 5)
        parameters = 12 * layers * width**2
        # forward one, backward two products, of two operations for each parameter and token
        seconds = {name: each / 5 for name, each in fastest(works).items()}
        seconds["products"] = 6 * parameters * config.make_task().tokens * sizes["batch"] / products
        found.append({"width": width, "layers": layers} | seconds)
    return found


def _steps(step: Callable[[int], object], count: int) -> None:
    for number in range(count):
        step(number)


PARTS: dict[str, Callable[[Any], Rows]] = {
    **{"startup": startup, "text": text, "planted": planted_models, "training": training},
    **{"runs": runs, "step": step, "rows": rows, "networks": networks},
}


def arguments() -> Arguments:
    parser = Arguments("benchmarks.performance", "Measure the numbers of docs/performance.md again.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all of {', '.join(PARTS)}")
    parser.add_argument("--llama", metavar="FOLDER", help="the stock Llama, for text")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bench", metavar="DIR", help="of PART.json")
    return parser


def main(words: Sequence[str]) -> int:
    options = arguments().read(words)
    progress, parts = Progress("performance"), options.parts or list(PARTS)
    for name in parts:
        if name not in PARTS:
            raise EmulonError(unknown("part", name, PARTS))
    torch.set_num_threads(1)
    for done, name in enumerate(parts):
        progress(name, done / len(parts))
        file, found = options.out / f"{name}.json", PARTS[name](options)
        if name == "text" and file.exists():
            found += [row for row in read_json(file)["rows"] if row["way"] not in {each["way"] for each in found}]
        write_json(file, provenance() | {"rows": found})
        columns = list(dict.fromkeys(key for row in found for key in row))
        say(table(columns, [[_shown(row.get(key)) for key in columns] for row in found], title=name))
    return 0


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(run_script("benchmarks.performance", main, sys.argv[1:]))
