"""Planted models: certificate, ground truth and interventions; and how long they outlive further training."""

from __future__ import annotations

from functools import partial
from itertools import product
from statistics import median

import torch
from torch import Tensor

from emulon.planted import PlantedModel, drawn_mechanism, obfuscate, plant
from emulon.planted.architecture import ARCHITECTURES
from emulon.planted.finetune import Trained, finetuned
from emulon.planted.mechanism import BoundedLinear
from emulon.report.figure import Figure, Panel, Series
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict
from reproduce.drawing import of_rows

# Asked of the truth: what its directions read, and how interventions compare with the program's own.
LEAST_FIT, PROVED = 0.9999, 0.95
# A single coordinate that is as good as this is a register's own slot.
SLOT = 0.99
# Registers that hardly vary have no R² to speak of.
VARIES = 1e-3
# Added to registers: large beside 1e-6, and small enough that no divisor of least squares comes near zero.
AMOUNT = 1e-3


def planted_models(setting: Setting) -> Numbers:
    """For every planted model and variant: error, bound, R² of the truth's directions and of the best coordinate, and
    how far the effects of interventions are from what the program predicts."""
    rows, architecture = [], setting.sizes.get("architecture", "gpt2")
    for index in range(setting.sizes["models"]):
        seed = setting.seed + index
        mechanism = drawn_mechanism(seed)
        setting.report_progress(str(mechanism), index / setting.sizes["models"])
        for dtype in ARCHITECTURES[architecture].dtypes:
            plain = plant(mechanism, dtype, architecture=architecture)
            for one in (plain, obfuscate(plain, seed)):
                found = measured(
                    one, setting.sizes["prompts"], intervene=dtype == ARCHITECTURES[architecture].dtypes[0]
                )
                rows.append({"seed": seed, "mechanism": str(mechanism), **found})
    return {"rows": rows}


def measured(one: PlantedModel, prompts: int, *, intervene: bool) -> Numbers:
    xs, ys = one.draw(prompts, seed=prompts)
    fits, slots = registers(one, xs, ys)
    out: Numbers = {
        "dtype": str(one.dtype).removeprefix("torch."),
        "obfuscated": bool(one.build.obfuscations),
        "error": float((one(xs, ys).double() - one.algorithm(xs, ys)).abs().max()),
        "bound": one.certificate.bound,
        "proved": one.certificate.proved,
        "least_fit": min(fits),
        "slots": sum(fit > SLOT for fit in slots) / len(slots),
    }
    if intervene:
        out |= interventions(one, xs[:16], ys[:16])
    return out


def registers(one: PlantedModel, xs: Tensor, ys: Tensor) -> tuple[list[float], list[float]]:
    """For every version that varies, where it was written: R² of the truth's directions, and of the best coordinate."""
    with torch.no_grad():
        out = one.network(inputs_embeds=one.embed(xs, ys), output_hidden_states=True)
    # The last of them has been through the last LayerNorm, which the truth reads through, too.
    streams, values = [stream[:, 1:].double() for stream in out.hidden_states], one.values(xs, ys)
    fits, slots = [], []
    for version in one.truth.versions:
        stream, wanted = streams[version.layer + 1], values[version.name]
        if wanted[..., 0].std() > VARIES:
            off = one.truth.read(version.register, stream) - wanted
            fits.append(float(1 - off.square().sum() / (wanted - wanted.mean()).square().sum()))
            if version.layer + 2 < len(streams):  # LayerNorm has taken the mean off the last
                slots.append(best_coordinate(stream, wanted[..., 0]))
    return fits, slots


def best_coordinate(stream: Tensor, wanted: Tensor) -> float:
    """R² of the best single coordinate, slope and offset fitted."""
    x, y = stream.flatten(0, -2), wanted.flatten()
    x, y = x - x.mean(dim=0), y - y.mean()
    return float(((x.mT @ y) ** 2 / (x.square().sum(dim=0) * y.square().sum()).clamp(min=1e-300)).max())


def interventions(one: PlantedModel, xs: Tensor, ys: Tensor) -> Numbers:
    """Adds random amounts to every version in turn: the distance of the answer from the program's, and, for versions
    that no prediction depends on, from the answer without."""
    generator = torch.Generator().manual_seed(0)
    before, used, unused = one(xs, ys), 0.0, 0.0
    for version in one.truth.versions:
        shape = len(xs), one.truth.tokens - 1, len(one.truth.registers[version.register].write)
        added = {version.name: AMOUNT * torch.randn(*shape, dtype=torch.float64, generator=generator)}
        answer = one(xs, ys, added=added)
        if version.last_read is None:
            unused = max(unused, float((answer - before).abs().max()))
        else:
            used = max(used, float((answer - one.expected(xs, ys, added=added)).abs().max()))
    return {"intervention": used, "unused": unused}


def judge_planted(numbers: Numbers, most: float, slots: float = 1.0) -> Verdict:
    """All within their bounds. In the dtype that is intervened in (in float32 a register of GPT-2's own error may be as
    large as it varies): 95 % of the plain and of the obfuscated models proved, every register read, interventions
    within `most` of what the program predicts, nothing changed by versions called unused; and of the registers of
    obfuscated models at most a share of `slots` read by a coordinate alone."""
    rows = numbers["rows"]
    asked = [row for row in rows if "intervention" in row]
    kinds = {name: [row for row in asked if row["obfuscated"] == (name != "plain")] for name in ("plain", "obfuscated")}
    within = sum(row["error"] <= row["bound"] for row in rows)
    least, off = min(row["least_fit"] for row in asked), max(row["intervention"] for row in asked)
    quiet = sum(row["unused"] <= row["bound"] for row in asked)
    shares = {name: sum(row["proved"] for row in part) / len(part) for name, part in kinds.items()}
    single = {name: sum(row["slots"] for row in part) / len(part) for name, part in kinds.items()}
    told = "; ".join(
        f"{name}: {shares[name]:.0%} of {len(part)} proved, median bound {median(row['bound'] for row in part):.1e}, "
        f"worst error {max(row['error'] for row in part):.1e}, a slot for {single[name]:.1%} of registers"
        for name, part in kinds.items()
    )
    ours = f"{within} of {len(rows)} within the bound; {told}; R² ≥ {least:.6f}; interventions off by {off:.1e}"
    open_ = [row["mechanism"] for row in asked if not row["proved"]]
    holds = within == len(rows) and min(shares.values()) >= PROVED and least >= LEAST_FIT and off <= most
    holds = holds and quiet == len(asked) and single["obfuscated"] <= slots
    reason = f"{quiet} of {len(asked)} do not change with versions that are called unused; "
    return Verdict.that(holds, ours, reason + (f"not proved: {', '.join(open_)}" if open_ else "all are proved"))


def draw_planted(numbers: Numbers) -> Figure:
    panels = []
    for dtype, obfuscated in product(dict.fromkeys(row["dtype"] for row in numbers["rows"]), (False, True)):
        rows = [row for row in numbers["rows"] if row["dtype"] == dtype and row["obfuscated"] == obfuscated]
        rows = sorted(rows, key=lambda row: float(row["bound"]))
        series = of_rows(rows, range(1, len(rows) + 1), ("error", "bound"), "line")
        title = f"{dtype}{', obfuscated' if obfuscated else ''}"
        panels.append(Panel("planted models, by bound", "distance to the algorithm", series, title=title, log_y=True))
    return Figure(panels)


def planted(name: str, model: str, asked: str, most: float, slots: float = 1.0, **sizes: str) -> Claim:
    """The claim about one architecture."""
    return Claim(
        name,
        "ours, planted models",
        f"Planted algorithms run as they are written in {model}",
        asked,
        {
            "small": Scale(1, {"models": 22, "prompts": 64, **sizes}),
            "paper": Scale(6, {"models": 200, "prompts": 64, **sizes}),
        },
        *(planted_models, partial(judge_planted, most=most, slots=slots), draw_planted),
    )


BOUNDED = "all within their bounds, 95 % proved, plain and obfuscated; R² ≥ 0.9999; interventions to"
CLAIM = planted(
    "ours-planted-models",
    "GPT2Model, plain and obfuscated, and the ground truth reads every register and predicts every intervention.",
    "all within their bounds; R² ≥ 0.9999; interventions to 1e-6; no coordinate alone reads a register once obfuscated",
    *(1e-6, 0.05),
)
LLAMAS = planted(
    "ours-planted-llamas",
    "LlamaModel in float32, plain and obfuscated, with proved bounds.",
    *(f"{BOUNDED} 1e-4", 1e-4),
    architecture="llama",
)
NEOX = planted(
    "ours-planted-neox",
    "GPTNeoXModel in float64, plain and obfuscated, with proved bounds.",
    *(f"{BOUNDED} 1e-9", 1e-9),
    architecture="gpt_neox",
)

VARIANT = ("rotated", "permuted", "dead components")
HELD_OUT = 256


def finetuning(setting: Setting) -> Numbers:
    """By mechanism and rate, at some steps of training on noisier targets: loss, distance to the algorithm, and how
    well the registers can still be read and moved."""
    found = []
    pairs = list(product(setting.sizes["mechanisms"], setting.sizes["rates"]))
    for place, (name, rate) in enumerate(pairs):
        setting.report_progress(f"{name} at {rate:g}", place / len(pairs))
        plain = plant(name, torch.float32, features=2, samples=4)
        start = obfuscate(plain, setting.seed, only=VARIANT)
        task = BoundedLinear(2, 4, noise=setting.sizes["noise"])
        steps = finetuned(start, task, rate=rate, at=setting.sizes["steps"], seed=setting.seed)
        rows = [after_training(one, start, task) for one in steps]
        found.append({"mechanism": name, "rate": rate, "bound": start.certificate.bound, "rows": rows})
    return {"runs": found}


def after_training(one: Trained, start: PlantedModel, task: BoundedLinear) -> Numbers:
    model = one.model
    xs, ys = start.draw(HELD_OUT, seed=1)
    shifted = task.held_out(2, HELD_OUT, start.mechanism.samples)
    fits, _ = registers(model, xs, ys)
    moved = interventions(model, xs[:16], ys[:16])
    return {
        "step": one.step,
        "loss": float((model(*shifted.pairs).double() - shifted.ys).square().mean()),
        "distance": float((model(xs, ys).double() - start.algorithm(xs, ys)).abs().max()),
        "fit": median(fits),
        "worst_fit": min(fits),
        "intervention": moved["intervention"],
    }


def judge_finetuning(numbers: Numbers) -> Verdict:
    """Every run leaves its certificate at its first step; at the least rate, where the loss has fallen by the end, the
    median register is still read with R² ≥ 0.9."""
    runs = numbers["runs"]
    gone = all(row["distance"] > run["bound"] for run in runs for row in run["rows"] if row["step"] >= 1)
    least = min(run["rate"] for run in runs)
    slow = [run for run in runs if run["rate"] == least]
    learned = {run["mechanism"]: run["rows"][-1]["loss"] < run["rows"][0]["loss"] for run in slow}
    alive = min(run["rows"][-1]["fit"] for run in slow)
    last = slow[0]["rows"][-1]["step"]
    told = ", ".join(
        f"{run['mechanism']} at {run['rate']:g}: loss {run['rows'][0]['loss']:.3f} → {run['rows'][-1]['loss']:.3f}, "
        f"R² {run['rows'][-1]['fit']:.2f}"
        for run in runs
    )
    reason = f"after {last} steps at {least:g} the median register is read with R² {alive:.3f}, and the loss "
    reason += ", ".join(f"of {name} {'fell' if fell else 'rose'}" for name, fell in learned.items())
    return Verdict.that(gone and all(learned.values()) and alive >= 0.9, told, reason)


def draw_finetuning(numbers: Numbers) -> Figure:
    panels = []
    for name in dict.fromkeys(run["mechanism"] for run in numbers["runs"]):
        runs = [run for run in numbers["runs"] if run["mechanism"] == name]
        for key, label in (("distance", "distance to the algorithm"), ("fit", "median R² of registers")):
            steps = [[1 + row["step"] for row in run["rows"]] for run in runs]
            series = [
                Series(f"rate {run['rate']:g}", x, [row[key] for row in run["rows"]])
                for run, x in zip(runs, steps, strict=True)
            ]
            panels.append(Panel("1 + steps", label, series, title=name, log_x=True, log_y=key == "distance"))
    return Figure(panels)


STEPS = [0, 1, 3, 10, 30, 100]
SMALL = {"mechanisms": ["sgd", "ridge"], "rates": [1e-6, 1e-5, 1e-4], "steps": STEPS, "noise": 0.5}
PAPER = SMALL | {"mechanisms": ["sgd", "ridge", "batch descent", "nearest average"], "steps": [*STEPS, 300]}
PAPER |= {"rates": [1e-7, 1e-6, 1e-5, 1e-4]}
FINETUNED = Claim(
    "ours-trained-planted-models",
    "ours, planted models",
    "A planted model that is trained further leaves its certificate at the first step; its registers outlive it.",
    "outside at once; at the least rate the loss falls and the median register keeps R² ≥ 0.9",
    {"small": Scale(1.5, SMALL), "paper": Scale(8, PAPER)},
    *(finetuning, judge_finetuning, draw_finetuning),
    reversal="at 1e-6 a loss that falls for both mechanisms by the end, with the median register at R² ≥ 0.9",
)
