"""Compile, then train: how long a specimen's certificate and the map of its registers outlive training."""

from __future__ import annotations

from statistics import median

import torch
from torch import Tensor

from emulon.planted import PlantedModel, obfuscate, plant
from emulon.planted.finetune import Trained, finetuned
from emulon.planted.mechanism import BoundedLinear
from emulon.report.figure import Figure, Panel, Series
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict
from reproduce.ours.specimens import VARIES, interventions, registers

VARIANT = ("rotated", "permuted", "dead components")
HELD_OUT = 256


def run(setting: Setting) -> Numbers:
    """By mechanism and rate, at some steps of training on noisier targets: loss, distance to the algorithm, and what is
    left of the registers' map."""
    found = []
    for place, (name, rate) in enumerate((n, r) for n in setting.sizes["mechanisms"] for r in setting.sizes["rates"]):
        setting.report_progress(
            f"{name} at {rate:g}", place / len(setting.sizes["mechanisms"] * len(setting.sizes["rates"]))
        )
        plain = plant(name, torch.float32, features=2, samples=4)
        start = obfuscate(plain, setting.seed, only=VARIANT)
        task = BoundedLinear(2, 4, noise=setting.sizes["noise"])
        steps = finetuned(start, task, rate=rate, at=setting.sizes["steps"], seed=setting.seed)
        rows = [measured(one, start, task) for one in steps]
        found.append({"mechanism": name, "rate": rate, "bound": start.certificate.bound, "rows": rows})
    return {"runs": found}


def measured(one: Trained, start: PlantedModel, task: BoundedLinear) -> Numbers:
    specimen = one.model
    xs, ys = start.draw(HELD_OUT, seed=1)
    shifted = task.held_out(2, HELD_OUT, start.mechanism.samples)
    fits, _ = registers(specimen, xs, ys)
    moved = interventions(specimen, xs[:16], ys[:16])
    return {
        "step": one.step,
        "loss": float((specimen(*shifted.pairs).double() - shifted.ys).square().mean()),
        "away": float((specimen(xs, ys).double() - start.algorithm(xs, ys)).abs().max()),
        "fit": median(fits),
        "worst_fit": min(fits),
        "refit": median(refits(specimen, xs, ys)),
        "intervention": moved["intervention"],
    }


def refits(one: PlantedModel, xs: Tensor, ys: Tensor) -> list[float]:
    """Of every version that varies, R² of a linear probe fitted on half of the prompts, on the other half: whether it
    is still there, in whatever direction."""
    with torch.no_grad():
        out = one.network(inputs_embeds=one.embed(xs, ys), output_hidden_states=True)
    values, half, fits = one.values(xs, ys), len(xs) // 2, []
    for version in one.truth.versions:
        wanted = values[version.name]
        if wanted[..., 0].std() > VARIES:
            stream = out.hidden_states[version.layer + 1][:, 1:].double()
            stream = torch.nn.functional.pad(stream, (0, 1), value=1.0)
            seen, asked = (part.flatten(0, 1) for part in (stream[:half], stream[half:]))
            told, truth = (part.flatten(0, 1) for part in (wanted[:half], wanted[half:]))
            probe = torch.linalg.lstsq(seen, told, driver="gelsd").solution
            off = (asked @ probe - truth).square().sum() / (truth - truth.mean()).square().sum()
            fits.append(float(1 - off))
    return fits


def judge(numbers: Numbers) -> Verdict:
    """Every run leaves its certificate at its first step; at the least rate, where the loss has fallen by the end, the
    median register is still read with R² ≥ 0.9."""
    runs = numbers["runs"]
    gone = all(row["away"] > run["bound"] for run in runs for row in run["rows"] if row["step"] >= 1)
    least = min(run["rate"] for run in runs)
    slow = [run for run in runs if run["rate"] == least]
    learned = {run["mechanism"]: run["rows"][-1]["loss"] < run["rows"][0]["loss"] for run in slow}
    alive = min(run["rows"][-1]["fit"] for run in slow)
    last = slow[0]["rows"][-1]["step"]
    told = ", ".join(
        f"{run['mechanism']} at {run['rate']:g}: loss {run['rows'][0]['loss']:.3f} → {run['rows'][-1]['loss']:.3f}, "
        f"R² {run['rows'][-1]['fit']:.2f} (probed anew {run['rows'][-1]['refit']:.2f})"
        for run in runs
    )
    reason = f"after {last} steps at {least:g} the median register is read with R² {alive:.3f}, and the loss "
    reason += ", ".join(f"of {name} {'fell' if fell else 'rose'}" for name, fell in learned.items())
    return Verdict.that(gone and all(learned.values()) and alive >= 0.9, told, reason)


def figure(numbers: Numbers) -> Figure:
    panels = []
    for name in dict.fromkeys(run["mechanism"] for run in numbers["runs"]):
        runs = [run for run in numbers["runs"] if run["mechanism"] == name]
        for key, label in (("away", "distance to the algorithm"), ("fit", "median R² of registers")):
            series = [
                Series(
                    f"rate {run['rate']:g}", [1 + row["step"] for row in run["rows"]], [row[key] for row in run["rows"]]
                )
                for run in runs
            ]
            panels.append(Panel("1 + steps", label, series, title=name, log_x=True, log_y=key == "away"))
    return Figure(panels)


CLAIM = Claim(
    name="ours-trained-specimens",
    source="ours, specimens",
    statement="A specimen that is trained further leaves its certificate at the first step; its registers outlive it.",
    theirs="outside at once; at the least rate the loss falls and the median register keeps R² ≥ 0.9",
    scales={
        "small": Scale(
            1.5,
            {
                "mechanisms": ["sgd", "ridge"],
                "rates": [1e-6, 1e-5, 1e-4],
                "steps": [0, 1, 3, 10, 30, 100],
                "noise": 0.5,
            },
        ),
        "paper": Scale(
            8,
            {
                "mechanisms": ["sgd", "ridge", "batch descent", "nearest average"],
                "rates": [1e-7, 1e-6, 1e-5, 1e-4],
                "steps": [0, 1, 3, 10, 30, 100, 300],
                "noise": 0.5,
            },
        ),
    },
    run=run,
    judge=judge,
    figure=figure,
)
