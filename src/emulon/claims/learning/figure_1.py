"""Figure 1: on noiseless data a trained learner predicts as least squares does, and holds the same weights."""

from __future__ import annotations

from typing import Any

from emulon.algorithms import LeastSquares, LinearRegression, NearestNeighbours, RidgeRegression
from emulon.claims.claim import Claim, Numbers, Scale, Setting, Verdict
from emulon.claims.figure import Figure, Panel, Series
from emulon.claims.learners import committed
from emulon.interrogate import Curve, squared_prediction_difference, weight_difference

LEAST_SQUARES = "least squares"
REFERENCES: dict[str, Any] = {
    LEAST_SQUARES: LeastSquares(),
    "ridge, λ = 0.1": RidgeRegression(0.1),
    "one step of descent": LinearRegression(steps=1),
    "3 neighbours": NearestNeighbours(3),
    "3 neighbours, weighted": NearestNeighbours(3, weighted=True),
}
MEASURES = {"predictions": squared_prediction_difference, "weights": weight_difference}
SHORT = {"predictions": "SPD", "weights": "ILW"}
# "squared error less than 0.01"
SMALL = 0.01


def run(setting: Setting) -> Numbers:
    """Both measures to every reference: as curves for the first seed of the datasets, as means over them for all."""
    subject = committed(setting, "noiseless_learner")
    numbers: Numbers = {"features": subject.task.features, "overall": {measure: [] for measure in MEASURES}}
    for done, seed in enumerate(setting.seeds):
        setting.report_progress(f"datasets of seed {seed}", done / len(setting.seeds))
        sampling = {"seed": seed, "datasets": setting.sizes["datasets"]}
        for name, measure in MEASURES.items():
            curves = {
                label: measure(subject.thing, reference, subject.task, **sampling)
                for label, reference in REFERENCES.items()
            }
            numbers["overall"][name].append({label: curve.overall.value for label, curve in curves.items()})
            numbers.setdefault(name, {label: as_numbers(curve) for label, curve in curves.items()})
    return numbers


def as_numbers(curve: Curve) -> Numbers:
    parts = {part: [getattr(value, part) for value in curve.values] for part in ("value", "low", "high")}
    return {"examples": list(curve.counts), **parts}


def judge(numbers: Numbers) -> Verdict:
    """For every seed least squares is the nearest by both measures, its mean distance over the examples below 0.01."""
    shown, reasons, holds = [], [], True
    for measure, label in SHORT.items():
        seeds = numbers["overall"][measure]
        nearest = sum(min(each, key=lambda name: each[name]) == LEAST_SQUARES for each in seeds)
        own = [each[LEAST_SQUARES] for each in seeds]
        below = sum(value < SMALL for value in own)
        holds = holds and nearest == below == len(seeds)
        shown.append(f"{label} {min(own):.2g} to {max(own):.2g} to least squares over {len(seeds)} seeds of datasets")
        curve = numbers[measure][LEAST_SQUARES]
        above = [n for n, value in zip(curve["examples"], curve["value"], strict=True) if value >= SMALL]
        where = f", above {SMALL} after {', '.join(map(str, above))} examples" if above else ""
        reasons.append(f"{label}: least squares nearest for {nearest}, mean below {SMALL} for {below}{where}")
    return Verdict.that(holds, ", ".join(shown), "; ".join(reasons) + f" (d = {numbers['features']})")


def figure(numbers: Numbers) -> Figure:
    panels = []
    for measure, label in (("predictions", "squared prediction difference / d"), ("weights", "‖w − w′‖²/d")):
        series = [
            Series(name, each["examples"], each["value"], low=each["low"], high=each["high"])
            for name, each in numbers[measure].items()
        ]
        panels.append(Panel("examples", label, series, log_y=True))
    return Figure(panels)


CLAIM = Claim(
    name="learning-figure-1",
    source="Akyürek et al. 2022, Figure 1",
    statement="On noiseless data a trained in-context learner agrees with least squares, and not with other methods.",
    theirs="SPD and ILW to least squares below 0.01 for almost any number of examples (16 layers, d = 8)",
    scales={"small": Scale(0.5, {"datasets": 512, "seeds": 8}, at_source_scale=False)},
    run=run,
    judge=judge,
    figure=figure,
    differs="The learner is the small one kept in results/learners/noiseless_learner: 4 layers, 64 wide, d = 3, 10,000 "
    "steps on a CPU, where the paper has 16 layers, 512 wide, d = 8 and 500,000 steps. Weighted neighbours count by "
    "1/distance; the printed weight, the squared distance, favours the far ones.",
)
