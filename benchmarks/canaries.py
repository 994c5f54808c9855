"""Canaries in every engine that is installed, and how good they are as tests, into results/canary/.

    python -m benchmarks.canaries [engines] [--only WORD …]   engines whose name has the word are measured again
    python -m benchmarks.canaries faults     which injected faults they name, and which a random model sees
    python -m benchmarks.canaries prompts    correct engines on random prompts: none below the proved bits

On a machine without python-flint (a GPU that is lent), logits are asked for there and judged here:

    python -m benchmarks.canaries --only cuda --ask FILE      needs torch, numpy, safetensors and transformers
    python -m benchmarks.canaries --judge FILE

Rows of engines that are not measured again stay, with their own date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.faulty_llama import FAULTS, LATER, NONE, Fault, Llama, rightly_named
from benchmarks.faulty_llama import engine as faulty
from emulon.canary.check import CANARIES, Report, ask, canary, check, compare, names_for
from emulon.canary.engine import ARITHMETICS
from emulon.canary.engines import ENGINES, Engine
from emulon.core.files import make_folder, provenance, read_json, write_json
from reproduce.arguments import Arguments, run_script, whole

RESULTS = Path(__file__).parents[1] / "results" / "canary"
DISTRIBUTIONS = {"llama_cpp": "llama-cpp-python", "mlx_lm": "mlx-lm", "transformer_lens": "transformer-lens"}
# torch.testing.assert_close's own for float32, and what engines' tests often use instead: (relative, absolute).
TOLERANCES = {"tight": (1.3e-6, 1e-5), "1e-3": (1e-3, 1e-3)}
# Of the weights of a random model: the usual one, and one whose attention is sharp.
SPREADS = (0.02, 0.2)


def about(engine: Engine) -> dict[str, Any]:
    """What a row says beside its numbers."""
    distribution = DISTRIBUTIONS.get(engine.package, engine.package)
    try:
        release = f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        release = distribution
    return {
        "engine": engine.name,
        "arithmetic": engine.arithmetic,
        "family": engine.family,
        **provenance(engine.device),
        "version": release,
    }


def asked(engine: Engine) -> dict[str, NDArray[Any]] | str:
    """One engine's logits by canary, or in one line why there are none."""
    try:
        return ask(engine.open, names_for(engine.arithmetic, engine.family))
    except Exception as error:  # whatever an engine that cannot run a checkpoint ends in
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def judged(engine: Engine, logits: dict[str, NDArray[Any]] | str) -> dict[str, Any]:
    """A row's numbers: bits kept and proved by probe, and the first wrong operation."""
    if isinstance(logits, str):
        return {"failed": logits}
    rows = [row for name, answer in logits.items() for row in compare(name, answer, engine.arithmetic, engine.offset)]
    text: dict[str, str] = {}
    if engine.writes and engine.device == "cpu":
        from emulon.canary import whole

        try:
            rows += whole.whole(engine.open)
        except Exception as error:  # as in `asked`; the other canaries' rows stand
            text = {"text": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    first = Report(engine.name, engine.arithmetic, tuple(rows)).first_wrong
    found = {} if first is None else {"first": f"{first.operation}, layer {first.layer} ({first.canary})"}
    return found | text | {"rows": [[r.canary, r.probe, round(r.kept, 1), round(r.proved, 1), r.wrong] for r in rows]}


def keep(row: dict[str, Any], file: str = "engines.json") -> None:
    """A row takes the place of the one of its engine; all stand in the order of registration."""
    path = make_folder(RESULTS) / file
    kept = {one["engine"]: one for one in (read_json(path) if path.exists() else [])} | {row["engine"]: row}
    print(f"{row['engine']}: {row.get('failed') or row.get('first', 'no fault')}", flush=True)
    write_json(path, [kept[name] for name in ENGINES if name in kept])


def engines(words: list[str], file: Path | None) -> None:
    """Every engine into the table, or its logits into a file for `judge`."""
    tables: dict[str, Any] = {}
    for name, engine in ENGINES.items():
        if not engine.installed or not any(word in name for word in words):
            continue
        found = asked(engine)
        if file is None:
            keep(about(engine) | judged(engine, found))
            continue
        # The registers are the first entries of the logits; what follows them is 0.
        tables[name] = found if isinstance(found, str) else {each: found[each].tolist() for each in found}
        tables[name] = {"about": about(engine), "logits": tables[name]}
        print(f"{name}: {found if isinstance(found, str) else 'asked'}", flush=True)
        write_json(file, tables)


def judge(file: Path) -> None:
    """Rows of engines whose logits were written elsewhere."""
    for name, one in read_json(file).items():
        logits = one["logits"]
        if not isinstance(logits, str):
            logits = {each: np.array(values, dtype=np.float64) for each, values in logits.items()}
        keep(one["about"] | judged(ENGINES[name], logits))


def faults() -> None:
    """Which faults a canary names at their operation, and which a random model sees at two tolerances."""
    rows = []
    for name, fault in ({"": NONE} | FAULTS | LATER).items():
        report = check(faulty(fault), name)
        first = report.first_wrong
        row: dict[str, Any] = {"fault": name, "later": name in LATER, "precision": fault.precision}
        row |= {"right": rightly_named(fault, report), "first": None}
        if first is not None:
            row |= {"first": first.operation, "canary": first.canary, "layer": first.layer}
            row |= {"kept": round(first.kept, 1), "proved": round(first.proved, 1)}
        rows.append(row | {"random": control(fault)})
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    write_json(make_folder(RESULTS) / "faults.json", {**provenance(), "tolerances": TOLERANCES, "rows": rows})


def control(fault: Fault) -> dict[str, bool]:
    """Whether a random Llama of the canary's shape differs from a float64 forward pass by more than a tolerance."""
    config, found = dict(canary("digital").config), {}
    config["rope_parameters"] = {"rope_theta": 5e5, "rope_type": "default"}
    prompts = torch.randint(0, config["vocab_size"], (4, 64), generator=torch.Generator().manual_seed(0), device="cpu")
    for spread in SPREADS:
        random, weights = torch.Generator().manual_seed(1), {}
        for name, each in canary("digital").weights.items():
            noise = torch.normal(0.0, spread, each.shape, generator=random, device="cpu")
            weights[name] = torch.ones_like(noise) if "norm" in name else noise
        exact = Llama(config, {name: each.double() for name, each in weights.items()})
        engine = Llama(config, weights, fault)
        off = [(engine.forward(p).double(), exact.forward(p)) for p in prompts]
        for name, (relative, absolute) in TOLERANCES.items():
            close = all(torch.allclose(got, right, rtol=relative, atol=absolute) for got, right in off)
            found[f"{spread} {name}"] = not close
    return found


def random_prompts(count: int) -> None:
    """Correct engines on random prompts of each number format: no register below its proved bits.

    `count` of them for Llama, a tenth for GPT-2 and GPT-NeoX, whose answers take longer to prove.
    """
    rows = []
    for family in ("llama", "gpt2", "gpt_neox"):
        for arithmetic in ARITHMETICS:
            end = f" {family}" * (family != "llama")
            engines = [f"transformers {arithmetic} {kind}{end}" for kind in ("eager", "sdpa")]
            rows.append(_held_to_proofs(family, arithmetic, engines, count if family == "llama" else count // 10))
            print(json.dumps(rows[-1]), flush=True)
            write_json(make_folder(RESULTS) / "prompts.json", rows)


def _held_to_proofs(family: str, arithmetic: str, engines: list[str], count: int) -> dict[str, Any]:
    from emulon.canary.reference import Reference

    row: dict[str, Any] = {"arithmetic": arithmetic, "family": family, "prompts": 0, "registers": 0}
    row |= {"least_spare_bits": np.inf, "engines": engines, "violations": dict.fromkeys(engines, 0)}
    names = names_for(arithmetic, family)
    for name in names:
        # Digital canaries are exact in all or in none: most prompts go to the others.
        part = count // 20 if name.startswith("digital") else 2 * count // len(names) - count // 20
        one = CANARIES[name](prompts=part, seed=1)
        reference = Reference(one.config, one.weights)
        exact = [reference.logits(prompt, ARITHMETICS[arithmetic]) for prompt in one.prompts]
        places = [one.registers[probe.name] for probe in one.probes]
        right = np.array([[float(each[i].exact.mid()) if i in each else 0.0 for i in places] for each in exact])
        bound = np.array([[each[i].error if i in each else 0.0 for i in places] for each in exact])
        row["prompts"] += len(exact)
        row["registers"] += right.size
        with TemporaryDirectory() as folder:
            one.write(Path(folder))
            for engine in engines:
                off = np.abs(ENGINES[engine].open(Path(folder))(one.prompts)[:, places] - right)
                # The exact number is a float64 here.
                row["violations"][engine] += int((~(off <= bound + 2.0**-52 * np.abs(right))).sum())
                spare = np.log2(bound[off > 0] / off[off > 0])
                row["least_spare_bits"] = round(min(row["least_spare_bits"], *spare.tolist(), np.inf), 2)
    return row | provenance()


def arguments() -> Arguments:
    parser = Arguments("benchmarks.canaries", "Canaries in engines, and how good they are as tests.", __doc__ or "")
    parser.add_argument("what", nargs="?", default="engines", choices=("engines", "faults", "prompts"))
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORD", help="engines with a word in their names")
    parser.add_argument("--count", type=whole(20), default=1000, help="prompts of each number format")
    parser.add_argument("--ask", type=Path, metavar="FILE", help="write logits for --judge instead of judging them")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="rows of logits that --ask has written")
    return parser


def main(words: Sequence[str]) -> int:
    given = arguments().read(words)
    torch.set_num_threads(1)
    if given.judge:
        judge(given.judge)
    elif given.what == "engines":
        engines(given.only, given.ask)
    elif given.what == "faults":
        faults()
    else:
        random_prompts(given.count)
    return 0


if __name__ == "__main__":
    sys.exit(run_script("benchmarks.canaries", main, sys.argv[1:]))
