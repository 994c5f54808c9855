"""Figure 2: under noise σ² and prior τ² the ridge parameter that explains a learner best is σ²/τ²."""

from __future__ import annotations

import math

from emulon.certify import Domain
from emulon.claims.claim import Claim, Numbers, Scale, Setting, Verdict
from emulon.claims.figure import Figure, Panel, Series
from emulon.claims.learners import committed, trained
from emulon.errors import EmulonError
from emulon.interrogate import RidgeFit, best_ridge
from emulon.machine import Transformer
from emulon.machine.programs import sherman_morrison
from emulon.machine.programs.gaussian import gaussian
from emulon.tasks import Linear
from emulon.training import TrainConfig

FEATURES, POINTS = 3, 9
LEARNERS = ("small_learner",)


def run(setting: Setting) -> Numbers:
    sizes = setting.sizes
    noises, priors = sizes["noises"], sizes["priors"]
    sampling = {"seed": setting.seed, "datasets": setting.sizes["datasets"]}
    grid = [(noise, prior) for noise in noises for prior in priors]
    cells = []
    for done, (noise, prior) in enumerate(grid):
        setting.report_progress(f"compiled ridge, σ = {noise:g}, τ = {prior:g}", done / (len(grid) + len(LEARNERS)))
        task = Linear(FEATURES, noise=noise, prior=prior)
        fit = best_ridge(machine(task), task, **sampling)
        cells.append(cell("compiled", noise, prior, fit))
    for name in LEARNERS:
        setting.report_progress(name, len(grid) / (len(grid) + len(LEARNERS)))
        subject = committed(setting, name)
        if not isinstance(subject.task, Linear):
            raise EmulonError(f"{name} was trained on {subject.task}, not on linear functions")
        fit = best_ridge(subject.thing, subject.task, **sampling)
        cells.append(cell("trained", subject.task.noise, subject.task.prior, fit))
    for number, noise in enumerate(sizes.get("trained_noises", ())):
        config = TrainConfig(**sizes["training"], noise=noise, seed=setting.seed)
        share = 0.5 / len(sizes["trained_noises"])
        learner = trained(config, setting, 0.5 + number * share, share)
        task = Linear(config.features, noise=noise)
        cells.append(cell("trained", noise, task.prior, best_ridge(learner.learner, task, **sampling)))
    return {"cells": cells}


def machine(task: Linear) -> Transformer:
    """A register machine that runs the Bayes predictor of this task, for targets as large as noise and prior make."""
    domain = gaussian(task.features, POINTS)
    reach = task.prior * domain.y + 8 * task.noise
    wide = Domain(POINTS, task.features, x=domain.x, y=reach, w=reach, spectrum=domain.spectrum)
    return sherman_morrison(task.features, POINTS, task.bayes_ridge, domain=wide).compile()


def cell(kind: str, noise: float, prior: float, fit: RidgeFit) -> Numbers:
    bayes = (noise / prior) ** 2
    return {
        "kind": kind,
        "noise": noise,
        "prior": prior,
        "bayes": bayes,
        "best": fit.best,
        "agrees": fit.agrees(bayes),
        "grid": list(fit.grid),
        "differences": [value.value for value in fit.differences],
    }


def judge(numbers: Numbers) -> Verdict:
    """Every learner's best λ is σ²/τ² within the grid's step of half an octave; machines show that this can be seen."""
    said, agreed = [], {}
    for kind in ("compiled", "trained"):
        cells = [each for each in numbers["cells"] if each["kind"] == kind]
        agree = sum(each["agrees"] for each in cells)
        apart = max(abs(math.log2(each["best"] / each["bayes"])) for each in cells)
        said.append(f"{kind}: {agree} of {len(cells)} at σ²/τ², farthest 2^{apart:.2f} away")
        agreed[kind] = agree == len(cells)
    shown = ", ".join(
        f"best λ {each['best']:.3g} where σ²/τ² = {each['bayes']:.3g}"
        for each in numbers["cells"]
        if each["kind"] == "trained"
    )
    if not agreed["compiled"]:
        return Verdict("cannot be tested here", f"trained: {shown}", "the measure misses the λ of compiled machines")
    return Verdict.that(agreed["trained"], f"trained: {shown}", "; ".join(said) + " (half an octave asked)")


def figure(numbers: Numbers) -> Figure:
    both = [
        Series(
            f"{kind}",
            [each["bayes"] for each in numbers["cells"] if each["kind"] == kind],
            [each["best"] for each in numbers["cells"] if each["kind"] == kind],
            "dots",
        )
        for kind in ("compiled", "trained")
    ]
    span = [min(each["bayes"] for each in numbers["cells"]), max(each["bayes"] for each in numbers["cells"])]
    right = Series("σ²/τ²", span, span, "dashes")
    curves = [
        Series(f"trained, σ²/τ² = {each['bayes']:.3g}", each["grid"], each["differences"])
        for each in numbers["cells"]
        if each["kind"] == "trained"
    ]
    return Figure(
        [
            Panel("σ²/τ²", "best ridge λ", [*both, right], log_x=True, log_y=True),
            Panel("ridge λ", "squared prediction difference / d", curves, log_x=True, log_y=True),
        ]
    )


TRAINING = {"task": "linear", "features": 3, "points": 9, "layers": 3, "width": 32, "heads": 4, "init": 0.08}
TRAINING |= {"steps": 2500, "lr": 3e-3, "warmup": 200, "schedule": "cosine", "start_features": 1, "feature_every": 150}
CLAIM = Claim(
    name="learning-figure-2",
    source="Akyürek et al. 2022, Figure 2",
    statement="Under noise σ² and prior τ² a learner is best explained by ridge regression with λ = σ²/τ².",
    theirs="best λ = σ²/τ² for all measured σ² and τ²",
    scales={
        "small": Scale(
            3,
            {"noises": [0.25, 0.5, 1.0], "priors": [0.5, 1.0, 2.0], "datasets": 256}
            | {"training": TRAINING, "trained_noises": [0.25, 1.0]},
            at_source_scale=False,
        ),
        "paper": Scale(
            0.7, {"noises": [0.125, 0.25, 0.5, 1.0], "priors": [0.5, 1.0, 1.5, 2.0], "datasets": 1024}, False
        ),
    },
    run=run,
    judge=judge,
    figure=figure,
    differs="The grid is asked of compiled register machines, whose answer is known, and shows that the measure works. "
    "Trained are the learner in results/learners/small_learner (d = 5, σ = 0.5) and two of d = 3 and 2,500 steps.",
)
