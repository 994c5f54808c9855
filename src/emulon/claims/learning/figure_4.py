"""Figure 4: the moment Xᵀy and the weights w can be read off a learner's hidden states, the moment first."""

from __future__ import annotations

from typing import Literal

from emulon.algorithms import LeastSquares, LinearRegression, RidgeRegression
from emulon.claims.claim import Claim, Numbers, Scale, Setting, Verdict
from emulon.claims.figure import Figure, Panel, Series
from emulon.claims.learners import committed, trained
from emulon.claims.learning.figure_1 import AT_SCALE
from emulon.interrogate import attention_probe, hidden_states, linear_probe, moments, prefix_weights
from emulon.machine import Transformer
from emulon.machine.programs import batch_gradient_descent
from emulon.models import Learner
from emulon.tasks import Linear, RegressionTask
from emulon.training import TrainConfig

# Few steps, so that each of them still changes w.
FEATURES, POINTS, STEPS, STEP_SIZE = 3, 9, 3, 0.4
# The registers whose last write makes the two quantities linear in the machine's state: the final w is a sum of the w
# before, of Xᵀy and of the product XᵀX·w, one layer before it is written down itself.
REGISTERS = {"Xᵀy": "target", "w": "product"}
# Held-out R²: exact but for the probe's shrinkage (w one step earlier gives less than 0.99), and well above chance.
READABLE, RECOVERED = 0.999, 0.5
# How much better an MLP must be than a linear probe for the encoding to be called nonlinear.
BETTER = 0.02


def run(setting: Setting) -> Numbers:
    setting.report_progress("a compiled machine", 0.0)
    return {"machine": machine_scores(setting), "learner": learner_scores(setting)}


def machine_scores(setting: Setting) -> Numbers:
    """Batch gradient descent, compiled: after all examples but the last, layer by layer, at the query's token."""
    machine = batch_gradient_descent(FEATURES, POINTS, STEP_SIZE, STEPS).compile()
    xs, ys = Linear(FEATURES).held_out(setting.seed, setting.sizes["machine_datasets"], POINTS).pairs
    hidden, seen = hidden_states(machine, xs, ys), POINTS - 1
    weights = prefix_weights(LinearRegression(steps=STEPS, step_size=STEP_SIZE), xs, ys)
    found = {}
    for name, target in (("Xᵀy", moments(xs, ys)), ("w", weights)):
        scores = linear_probe(hidden, target[:, seen], seed=setting.seed)
        at = scores.at(f"x{seen + 1}")
        found[name] = {
            "score": [score for score, _ in at],
            "control": [control for _, control in at],
            "readable": scores.first_layer(f"x{seen + 1}", READABLE),
            "written": last_write(machine, REGISTERS[name]),
        }
    return found


def last_write(machine: Transformer, register: str) -> int:
    """The layer that writes this register last."""
    return max(
        number
        for number, layer in enumerate(machine.layers, start=1)
        if any(instruction.target.name == register for instruction in layer.instructions)
    )


def learner_scores(setting: Setting) -> Numbers:
    """A trained learner, by probes with attention over its positions: linear ones and MLPs."""
    (learner, task), sizes = learner_and_task(setting), setting.sizes
    count, points = sizes["examples"], sizes.get("points") or max(learner.examples) + 1
    xs, ys = task.held_out(setting.seed, sizes["learner_datasets"], points).pairs
    device = next(learner.parameters()).device
    hidden = hidden_states(learner, xs.to(device), ys.to(device))
    bayes = RidgeRegression(task.bayes_ridge) if task.bayes_ridge else LeastSquares()
    wanted = {"Xᵀy": moments(xs, ys)[:, count], "w": bayes.run(xs[:, :count], ys[:, :count])}
    kinds: tuple[Literal["linear", "mlp"], ...] = ("linear", "mlp")
    probes = [(name, kind) for name in wanted for kind in kinds]
    found: Numbers = {"examples": count, "tokens": list(hidden.tokens), "Xᵀy": {}, "w": {}}
    for done, (name, kind) in enumerate(probes):
        setting.report_progress(f"{kind} probe for {name}", (1 + done) / (1 + len(probes)))
        scores = attention_probe(hidden, wanted[name], kind=kind, seed=setting.seed)
        best = int(scores.score.argmax())
        found[name][kind] = {
            "score": scores.score.tolist(),
            "control": scores.control.tolist(),
            "best": best,
            "looks_at": scores.looks_at(best),
            "attention": scores.attention[best].tolist(),
        }
    return found


def learner_and_task(setting: Setting) -> tuple[Learner, RegressionTask]:
    """Trained on the spot where the sizes say how, or the one that is kept."""
    if "training" not in setting.sizes:
        subject = committed(setting, "small_learner")
        return subject.thing, subject.task
    config = TrainConfig.following(**setting.sizes["training"], seed=setting.seed)
    task = config.make_task()
    assert isinstance(task, RegressionTask)
    return trained(config, setting, 0.1, 0.5).learner, task


def judge(numbers: Numbers) -> Verdict:
    """All of: both are recovered, not from the input; the moment comes first; MLPs do better; the place is right."""
    machine, learner = numbers["machine"], numbers["learner"]
    known = all(each["readable"] == each["written"] for each in machine.values())
    best = {name: max(learner[name].values(), key=lambda each: max(each["score"])) for name in REGISTERS}
    score = {name: max(each["score"]) for name, each in best.items()}
    enough = {name: max(RECOVERED, each["score"][0] + 0.2, max(each["control"]) + 0.2) for name, each in best.items()}
    parts = {
        "recovered, not from the input": all(score[name] >= enough[name] for name in REGISTERS),
        "Xᵀy at an earlier layer than w": best["Xᵀy"]["best"] < best["w"]["best"],
        "MLP probes better": all(
            max(learner[name]["mlp"]["score"]) > max(learner[name]["linear"]["score"]) + BETTER for name in REGISTERS
        ),
        "read at the last example": all(each["looks_at"] == f"y{learner['examples']}" for each in best.values()),
        "machine's layers found": known,
    }
    shown = ", ".join(f"{name} R² {score[name]:.2f} at layer {best[name]['best']}" for name in REGISTERS)
    places = ", ".join(f"{name} {each['readable']} (written {each['written']})" for name, each in machine.items())
    told = ", ".join(f"{name}: {'yes' if held else 'no'}" for name, held in parts.items())
    return Verdict.that(all(parts.values()), f"learner: {shown}; machine: layer {places}", told)


def figure(numbers: Numbers) -> Figure:
    known = []
    for name, each in numbers["machine"].items():
        layers = range(len(each["score"]))
        known.append(Series(name, layers, each["score"]))
        known.append(Series(f"{name}, control", layers, each["control"], "dashes", of=name))
    panels = [Panel("layer", "R²", known, title="compiled gradient descent")]
    for name in REGISTERS:
        series = []
        for kind, each in numbers["learner"][name].items():
            layers = range(len(each["score"]))
            series.append(Series(f"{kind} probe", layers, each["score"]))
            series.append(Series(f"{kind} probe, control", layers, each["control"], "dashes", of=series[-1].label))
        panels.append(Panel("layer", "R²", series, title=f"trained learner, {name}"))
    tokens = numbers["learner"]["tokens"]
    looked = [
        Series(f"{name}, linear probe", tokens, numbers["learner"][name]["linear"]["attention"], "bars")
        for name in REGISTERS
    ]
    panels.append(Panel("", "attention of the probe", looked, title=f"after {numbers['learner']['examples']} examples"))
    return Figure(panels)


CLAIM = Claim(
    name="learning-figure-4",
    source="Akyürek et al. 2022, Figure 4",
    statement="Xᵀy and w can be read off a learner's deeper states, Xᵀy first, nonlinearly and at the right place.",
    theirs="Xᵀy from about layer 7, w from about layer 12 of 16; MLP probes better than linear ones",
    scales={
        "small": Scale(0.4, {"machine_datasets": 1024, "learner_datasets": 1024, "examples": 6}, at_source_scale=False),
        "paper": Scale(1.4, {"machine_datasets": 4096, "learner_datasets": 4096, "examples": 6}, at_source_scale=False),
        "gpu": Scale(
            5,
            {"machine_datasets": 4096, "learner_datasets": 4096, "examples": 12, "points": 13, "training": AT_SCALE},
        ),
    },
    run=run,
    judge=judge,
    figure=figure,
    differs="On a CPU the learner is the one in results/learners/small_learner (d = 5, a few layers), so that layers "
    "can be compared in order only; at the scale gpu it is the paper's, trained by Muon. A control "
    "task stands beside every probe, and a compiled machine whose layers are known.",
)
