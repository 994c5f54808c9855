"""`emulon probe`: where in a learner's hidden states an algorithm's quantities can be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from emulon.algorithms import LeastSquares, OnlineSGD, RidgeRegression
from emulon.algorithms.algorithm import Algorithm
from emulon.cli.options import CommandOptions, Count, Positive, Seed, shown
from emulon.core.errors import EmulonError
from emulon.core.predictor import NotAPredictor, as_predictor
from emulon.identification import (
    AttentionScores,
    ProbeScores,
    attention_probe,
    hidden_states,
    linear_probe,
    moments,
    prefix_weights,
)
from emulon.identification.loading import load_subject
from emulon.report.terminal import say, table
from emulon.tasks import RegressionTask

EXAMPLES = """examples:
  emulon probe runs/standard                   the w of the Bayes predictor after 3 examples, layer by layer
  emulon probe runs/standard --quantity moment --probe mlp
  emulon probe mine.py:machine --examples 2 --step-size 0.05"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """At which layer and position can a quantity be read off TARGET's hidden states? The control task's score, that of
    the same probe asked for another dataset's quantity, stands beside every score."""

    target: Positional[Annotated[str, arg(metavar="TARGET")]]
    """a run folder, or module:name of a compiled machine, or of a function that makes one"""
    task: Annotated[str | None, shown("TASK")] = None
    """where datasets come from, as linear:features=4,noise=0.1,prior=1; by default TARGET's own"""
    quantity: Literal["w", "moment"] = "w"
    """the weights w, or the moment vector Xᵀy"""
    step_size: Annotated[Positive | None, shown("NUMBER")] = None
    """look for the w of online SGD with this step size …"""
    ridge: Annotated[float | None, shown("NUMBER")] = None
    """… or of ridge regression with this parameter; by default of the Bayes predictor: ridge, or least squares"""
    examples: Count = 3
    """the quantity after so many examples"""
    probe: Literal["linear", "attention", "mlp"] = "linear"
    """one linear probe for each position, or one for all that finds the position by attention: linear or an MLP"""
    points: Annotated[Count | None, shown("COUNT")] = None
    """as many as TARGET reads, or 8"""
    datasets: Count = 2048
    """how many to fit and score the probes on"""
    seed: Seed = 0
    """of the datasets"""

    def algorithm(self, task: RegressionTask) -> Algorithm:
        """Whose w is looked for."""
        if self.step_size is not None:
            return OnlineSGD(self.step_size)
        ridge = task.bayes_ridge if self.ridge is None else self.ridge
        return RidgeRegression(ridge) if ridge else LeastSquares()


def main(options: Options) -> int:
    subject = load_subject(options.target, options.task)
    points = options.points or points_of(subject.thing)
    if options.examples >= points:
        raise EmulonError(f"examples must lie in 1 … {points - 1}, got {options.examples}")
    xs, ys = subject.task.held_out(options.seed, options.datasets, points).pairs
    states = hidden_states(subject.thing, xs, ys)
    if options.quantity == "moment":
        name, held = "Xᵀy", moments(xs, ys)
    else:
        algorithm = options.algorithm(subject.task)
        name, held = f"the w of {algorithm}", prefix_weights(algorithm, xs, ys)
    title = f"{name} after {options.examples} examples in {options.target}"
    target = held[:, options.examples]
    if options.probe == "linear":
        scores = linear_probe(states, target, seed=options.seed)
        say_scores(title, scores)
        record = {"tokens": list(scores.tokens), "R2": scores.score.tolist(), "control": scores.control.tolist()}
        return options.finish({"quantity": name, "examples": options.examples} | record)
    kind: Literal["linear", "mlp"] = "mlp" if options.probe == "mlp" else "linear"
    found = attention_probe(states, target, kind=kind, seed=options.seed)
    say_attention(title, found)
    record = {"layers": list(found.layers), "R2": list(found.score), "control": list(found.control)}
    return options.finish({"quantity": name, "examples": options.examples} | record)


def points_of(thing: object) -> int:
    """As many points as it reads, the query included; 8 where it does not say."""
    try:
        return int(max(getattr(as_predictor(thing), "examples", None) or [7])) + 1
    except NotAPredictor:  # something that shows its hidden states and predicts nothing
        return 8


def say_scores(title: str, scores: ProbeScores) -> None:
    """Positions down the side and layers across, or the other way round where there are more layers."""
    cells = [
        [f"{r:.2f} ({c:.2f})" for r, c in zip(row, control, strict=True)]
        for row, control in zip(scores.score.tolist(), scores.control.tolist(), strict=True)
    ]
    layers, tokens = [str(layer) for layer in range(len(cells))], list(scores.tokens)
    if len(layers) > len(tokens):
        corner, across, down, body = "layer", tokens, layers, cells
    else:
        corner, across, down, body = "token \\ layer", layers, tokens, list(map(list, zip(*cells, strict=True)))
    rows = [(name, *row) for name, row in zip(down, body, strict=True)]
    say(f"R² (control) of {title}", table((corner, *across), rows), width=max(100, 16 + 16 * len(across)))


def say_attention(title: str, scores: AttentionScores) -> None:
    rows = [
        (str(layer), f"{score:.2f}", f"{control:.2f}", scores.looks_at(layer), f"{attention.max():.2f}")
        for layer, score, control, attention in zip(
            scores.layers, scores.score, scores.control, scores.attention, strict=True
        )
    ]
    columns = ("layer", "R²", "control", "looks at", "with weight")
    say(f"{title}, by a probe with attention over positions", table(columns, rows))
