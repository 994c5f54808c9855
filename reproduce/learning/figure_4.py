"""Figure 4: the moment Xᵀy and the weights w can be read off a learner's hidden states, the moment first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import mean
from typing import Literal

import torch
from torch import Tensor

from emulon.algorithms import LeastSquares, LinearRegression, RidgeRegression
from emulon.identification import hidden_states, linear_probe, moments, prefix_weights
from emulon.identification.probes import interleaved
from emulon.machine import Transformer
from emulon.machine.programs import batch_gradient_descent
from emulon.models import Learner
from emulon.report.figure import Figure, Panel, Series
from emulon.tasks import Linear, RegressionTask
from emulon.training import TrainConfig
from emulon.training.step import matrix_precision
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict, set_up
from reproduce.learners import committed, trained
from reproduce.learning.figure_3 import RECIPE, WIDE
from reproduce.learning.probes import attention_probes, standardised, statistics_of

# Few steps, so that each of them still changes w.
FEATURES, POINTS, STEPS, STEP_SIZE = 3, 9, 3, 0.4
# The registers whose last write makes the two quantities linear in the machine's state: the final w is a sum of the w
# before, of Xᵀy and of the product XᵀX·w, one layer before it is written down itself.
REGISTERS = {"Xᵀy": "target", "w": "product"}
KINDS: tuple[Literal["linear", "mlp"], ...] = ("linear", "mlp")
# Held-out R²: exact but for the probe's shrinkage (w one step earlier gives less than 0.99), and well above chance.
READABLE, RECOVERED = 0.999, 0.5
# How much better an MLP must be than a linear probe for the encoding to be called nonlinear.
BETTER = 0.02
# A quantity is there from the first layer whose R² is this share of the largest: R² goes up and down by hundredths from
# one deep layer to the next, so that the layer of the largest says nothing.
ONSET = 0.9
# Probes whose mean R² the second half of their training still raised by this have not converged.
CONVERGED = 0.01
# Datasets whose states are computed at once.
PART = 1024


def run(setting: Setting) -> Numbers:
    """The probes of a compiled machine, and of a learner for every seed."""
    measures = {f"learner, seed {seed}": partial(learner_scores, seed) for seed in setting.seeds}
    found = setting.parts({**measures, "a compiled machine": machine_scores})
    machine = found.pop("a compiled machine", {})
    return {"machine": machine, "learners": list(found.values())}


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


def learner_scores(seed: int, setting: Setting) -> Numbers:
    """A trained learner, by probes with attention over its positions, linear ones and MLPs: one for every layer and
    every number of examples asked for, and a control task at the largest of these."""
    (learner, task), sizes = learner_and_task(seed, setting), setting.sizes
    counts = sizes["examples"]
    points = sizes.get("points") or max(learner.examples) + 1
    xs, ys = task.held_out(setting.seed, sizes["learner_datasets"], points).pairs
    states = states_of(learner, xs, ys, torch.bfloat16 if sizes.get("bf16") else torch.float32)
    bayes = RidgeRegression(task.bayes_ridge) if task.bayes_ridge else LeastSquares()
    wanted = {
        "Xᵀy": [moments(xs, ys)[:, count] for count in counts],
        "w": [bayes.run(xs[:, :count], ys[:, :count]) for count in counts],
    }
    mixed = torch.randperm(len(xs), generator=torch.Generator().manual_seed(seed))
    targets = torch.stack([target for each in wanted.values() for target in (*each, each[-1][mixed])])
    tokens = interleaved(states.shape[2])
    found: Numbers = {"seed": seed, "examples": counts, "tokens": list(tokens), "Xᵀy": {}, "w": {}}
    for done, kind in enumerate(KINDS):
        setting.report_progress(f"{kind} probes", (1 + done) / (1 + len(KINDS)))
        with matrix_precision("tf32"):
            scores, attention, halves = attention_probes(states, targets, kind, seed, **sizes["probe"])
        for place, name in enumerate(wanted):
            start = place * (len(counts) + 1)
            own, control = slice(start, start + len(counts)), start + len(counts)
            score = scores[:, own].T
            best = score.argmax(dim=1)
            looked = torch.stack([attention[best[k], start + k] for k in range(len(counts))])
            found[name][kind] = {
                "score": score.tolist(),
                "control": scores[:, control].tolist(),
                "halfway": [part[:, own].mean().item() for part in halves],
                "looks_at": [tokens[int(each)] for each in looked.argmax(dim=1)],
                "attention": looked[-1].tolist(),
            }
    return found


@torch.no_grad()
def states_of(learner: Learner, xs: Tensor, ys: Tensor, dtype: torch.dtype) -> Tensor:
    """The learner's hidden states on its device, a part of the datasets at a time, standardised by the first part."""
    device, out, statistics = next(learner.parameters()).device, None, None
    for start in range(0, len(xs), PART):
        rows = slice(start, start + PART)
        states = hidden_states(learner, xs[rows].to(device), ys[rows].to(device)).states
        if out is None or statistics is None:
            statistics = statistics_of(states)
            out = torch.empty(len(states), len(xs), *states.shape[2:], dtype=dtype, device=device)
        out[:, rows] = standardised(states, statistics)
    assert out is not None
    return out


def learner_and_task(seed: int, setting: Setting) -> tuple[Learner, RegressionTask]:
    """Trained on the spot where the sizes say how, or the one that is kept."""
    if "training" not in setting.sizes:
        subject = committed(setting, "small_learner")
        return subject.thing, subject.task
    config = TrainConfig.following(**setting.sizes["training"], seed=seed)
    task = config.make_task()
    assert isinstance(task, RegressionTask)
    return trained(config, setting).learner, task


def by_layer(learner: Numbers, name: str, kind: str) -> list[float]:
    """R² of every layer, mean over the numbers of examples."""
    return [mean(column) for column in zip(*learner[name][kind]["score"], strict=True)]


def onset(score: Sequence[float]) -> int:
    """The first layer whose score is at least nine tenths of the largest."""
    enough = min(ONSET * max(score), max(score))  # the largest itself, where that is negative
    return next(layer for layer, each in enumerate(score) if each >= enough)


def held(learner: Numbers) -> dict[str, bool]:
    """What the paper says of one learner, part by part, by the better kind of probe; both kinds must date alike."""
    scores = {name: {kind: by_layer(learner, name, kind) for kind in KINDS} for name in REGISTERS}
    best = {name: max(KINDS, key=lambda kind: max(scores[name][kind])) for name in REGISTERS}
    top = {name: scores[name][kind] for name, kind in best.items()}
    control = {name: max(learner[name][kind]["control"]) for name, kind in best.items()}
    enough = {name: max(RECOVERED, top[name][0] + 0.2, control[name] + 0.2) for name in REGISTERS}
    looked = [
        place == f"y{count}"
        for name, kind in best.items()
        for count, place in zip(learner["examples"], learner[name][kind]["looks_at"], strict=True)
    ]
    return {
        "recovered, not from the input": all(max(top[name]) >= enough[name] for name in REGISTERS),
        "Xᵀy at an earlier layer than w": all(onset(scores["Xᵀy"][kind]) < onset(scores["w"][kind]) for kind in KINDS),
        "MLP probes better": all(max(scores[n]["mlp"]) > max(scores[n]["linear"]) + BETTER for n in REGISTERS),
        "read at the last example": sum(looked) > len(looked) / 2,
    }


def judge(numbers: Numbers) -> Verdict:
    """For every learner all of: both are recovered, not from the input; the moment is there at an earlier layer, by
    onset and by both kinds of probes; MLPs do better; most probes look at the last example. Probes that have not
    converged decide nothing."""
    machine, learners = numbers["machine"], numbers["learners"]
    known = all(each["readable"] == each["written"] for each in machine.values())
    every = [held(each) for each in learners]
    parts = {name: sum(each[name] for each in every) for name in every[0]}
    shown = "; ".join(
        ", ".join(
            f"{name} ({kind}) R² {max(score):.2f}, from layer {onset(score)}"
            for name in REGISTERS
            for kind in KINDS
            if (score := by_layer(each, name, kind))
        )
        for each in learners
    )
    places = ", ".join(f"{name} {each['readable']} (written {each['written']})" for name, each in machine.items())
    told = ", ".join(f"{name}: {count} of {len(every)}" for name, count in parts.items())
    told += f", machine's layers found: {'yes' if known else 'no'}"
    ours, late = f"learner: {shown}; machine: layer {places}", unfinished(learners)
    if late:
        return Verdict("not tested at scale", ours, f"{told}; probes that have not converged: {', '.join(late)}")
    return Verdict.that(known and all(count == len(every) for count in parts.values()), ours, told)


def unfinished(learners: Sequence[Numbers]) -> list[str]:
    """The probes whose R² still rose in the second half of their training, where that was measured."""
    late = []
    for name in REGISTERS:
        for kind in KINDS:
            gains = [after - before for one in learners for before, after in [one[name][kind].get("halfway", (0, 0))]]
            if max(gains) > CONVERGED:
                late.append(f"{kind} for {name} (by {max(gains):.2f})")
    return late


def figure(numbers: Numbers) -> Figure:
    """Of the first learner, mean over the numbers of examples; the control is that of the largest number."""
    known = []
    for name, each in numbers["machine"].items():
        layers = range(len(each["score"]))
        known.append(Series(name, layers, each["score"]))
        known.append(Series(f"{name}, control", layers, each["control"], "dashes", of=name))
    panels = [Panel("layer", "R²", known, title="compiled gradient descent")]
    learner = numbers["learners"][0]
    for name in REGISTERS:
        series = []
        for kind in KINDS:
            score = by_layer(learner, name, kind)
            series.append(Series(f"{kind} probe", range(len(score)), score))
            control = learner[name][kind]["control"]
            series.append(Series(f"{kind} probe, control", range(len(score)), control, "dashes", of=f"{kind} probe"))
        panels.append(Panel("layer", "R²", series, title=f"trained learner, {name}"))
    looked = [
        Series(f"{name}, linear probe", learner["tokens"], learner[name]["linear"]["attention"], "bars")
        for name in REGISTERS
    ]
    panels.append(Panel("", "attention of the probe", looked, title=f"after {learner['examples'][-1]} examples"))
    return Figure(panels)


SMALL = {"machine_datasets": 1024, "learner_datasets": 1024, "examples": [6], "probe": {"steps": 300}}
PROBE = {"steps": 4000, "rate": 1e-4, "decay": 0.0, "one_cycle": False, "inner": 512, "batch": 256, "measurements": 20}
GPU = {"machine_datasets": 4096, "learner_datasets": 24576, "examples": list(range(1, 13)), "points": 13}
GPU |= {"training": WIDE, "seeds": 3, "bf16": True, "probe": PROBE}
SET_UP = f"""{RECIPE}model | 16 layers of 512, 4 heads | the same
steps × batch | 500,000 × 64 | 5,000 × 64 | does not hold
probes | H′ = 512, Adam, 1e-4, one for each prefix | the same, prefixes of 1 to 12 examples
steps × batch of a probe | not stated | 4,000 × 256
"""
CLAIM = Claim(
    "learning-figure-4",
    "Akyürek et al. 2022, Figure 4",
    "Xᵀy and w can be read off a learner's deeper states, Xᵀy first, nonlinearly and at the right place.",
    "Xᵀy from about layer 7, w from about layer 12 of 16; MLP probes better than linear ones",
    {
        "small": Scale(0.4, SMALL, at_source_scale=False),
        "gpu": Scale(8, GPU, set_up=set_up(SET_UP)),
    },
    *(run, judge, figure),
    differs="On a CPU the learner is the one in results/learners/small_learner (d = 5, a few layers), so that layers "
    "can be compared in order only. A control task stands beside every probe, and a compiled machine whose layers are "
    "known.",
    reversal="converged probes of every seed that meet each part: recovered, Xᵀy at the earlier layer, MLPs better, "
    "read at the last example",
)
