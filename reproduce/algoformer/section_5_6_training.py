"""Section 5.6: what a training step of AlgoFormer costs beside the standard and the looped one's."""

from __future__ import annotations

from emulon.report.figure import Figure, Panel, Series
from reproduce.algoformer.language import MODELS
from reproduce.algoformer.section_5_6 import DIFFERS, SIZES, WITHIN, run
from reproduce.claim import Claim, Numbers, Scale, Verdict

# What "negligible" is taken to mean beside the standard model, and what is stated beside the looped one at T = 20.
NEGLIGIBLE, STATED = 1.1, 1 / 10


def judge(numbers: Numbers) -> Verdict:
    """Both of: a training step at the paper's (T, ΔT) = (10, 10) takes at most 1.1 times the standard model's
    operations; and of one at (20, 15) what the looped model does not do is within a factor of 1.25 of 1/10."""
    first, second = (numbers["trained"][name] for name in ("10, 10", "20, 15"))
    own = ratio(first, "operations")
    times, kept = (ratio(first, what) for what in ("seconds", "kept_bytes"))
    blocks = numbers["blocks"]["algoformer"] / numbers["blocks"]["standard"]
    share = 1 - 1 / ratio(second, "operations", "looped")
    parameters = "/".join(f"{first[model]['parameters'] / 1e6:.1f}" for model in MODELS)
    near = STATED / WITHIN <= share <= STATED * WITHIN
    return Verdict.that(
        own <= NEGLIGIBLE and near,
        f"a training step at (10, 10) costs {own:.2f} times the standard model's operations ({blocks:.2f} without"
        f" scores of words), {times:.2f} its time, {kept:.2f} its kept activations; at (20, 15) pre and post are"
        f" {share:.2f} of all operations; millions of parameters, standard/looped/AlgoFormer: {parameters}",
        f"in training the post-transformer and the read-out run for every loop count of the loss (asked: {NEGLIGIBLE:g}"
        f" times the standard model's operations at most, and {STATED:g} for pre and post)",
    )


def ratio(models: Numbers, what: str, of: str = "standard") -> float:
    return float(models["algoformer"][what] / models[of][what])


def figure(numbers: Numbers) -> Figure:
    panels = []
    for what, label in (("operations", "operations"), ("seconds", "seconds"), ("kept_bytes", "kept activations")):
        series = [
            Series(f"(T, ΔT) = ({name})", list(MODELS), [ratio_of(models, model, what) for model in MODELS], "bars")
            for name, models in numbers["trained"].items()
        ]
        panels.append(Panel("", "times the standard model's", series, title=f"{label} of a training step"))
    return Figure(panels)


def ratio_of(models: Numbers, model: str, what: str) -> float:
    return float(models[model][what] / models["standard"][what])


CLAIM = Claim(
    name="algoformer-section-5.6-training",
    source="Gao et al. 2024, section 5.6, training",
    statement="AlgoFormer's additional cost of training over the standard and the looped transformer is negligible.",
    theirs="“negligible”; pre and post are about 1/10 of the computation at T = 20 during training; no times are given",
    scales={
        "small": Scale(1, SIZES | {"batch": 4, "repeats": 3}),
        "gpu": Scale(1, SIZES | {"batch": 64, "repeats": 20}),
    },
    run=run,
    judge=judge,
    figure=figure,
    differs=f"{DIFFERS} A step is its forward and backward pass.",
)
