"""Interrogations and probes as tables on the terminal."""

from __future__ import annotations

import sys
from typing import Any

from emulon.interrogate.attention_probe import AttentionScores
from emulon.interrogate.identification import Identification
from emulon.interrogate.interrogation import Interrogation
from emulon.interrogate.linear_probe import ProbeScores


def print_interrogation(said: Interrogation) -> None:
    console = _console()
    print_ranking(said.target, said.found)
    console.print(_by_examples(said))
    print(f"asked about {said.task}")
    best = f"best ridge λ on a grid of half octaves: {said.ridge.best:.3g}, difference {said.ridge.difference}"
    if said.bayes is not None:
        near = "within the grid's step" if said.agrees else "farther than the grid's step"
        best += f"; σ²/τ² = {said.bayes:.3g} is {near}"
    print(best)


def print_ranking(target: str, found: Identification) -> None:
    from rich.table import Table

    table = Table(title=f"{target}: {found.algorithm}")
    for column in ("reference", "unexplained", "95% interval", ""):
        table.add_column(column)
    for match in found.ranking:
        share = match.unexplained
        mark = "tie" if match.name in found.ties else "named" if match is found.nearest and found.found else ""
        table.add_row(str(match), f"{share.value:.3g}", f"{share.low:.3g} … {share.high:.3g}", mark)
    console = _console()
    console.print(table)
    console.print(str(found), markup=False, highlight=False)


def _by_examples(said: Interrogation) -> Any:
    """Rows for numbers of examples, a column for each reference and distance."""
    from rich.table import Table

    comparison = said.comparison
    table = Table(
        title="distance by number of examples",
        caption="predictions: E(ŷ − ŷ′)²/d; weights: E‖w − w′‖²/d of the implicit linear weights, R²: their part of ŷ",
    )
    table.add_column("examples", justify="right")
    for what, curves in (("predictions", comparison.predictions), ("weights", comparison.weights)):
        for name in curves:
            table.add_column(f"{what}\n{name.partition('(')[0]}", justify="right")
    table.add_column("weights\nR²", justify="right")
    every = [*comparison.predictions.values(), *comparison.weights.values(), comparison.linearity]
    for n in comparison.linearity.counts:
        table.add_row(str(n), *(f"{curve[n].value:.2g}" for curve in every))
    return table


def print_scores(title: str, scores: ProbeScores) -> None:
    """Positions down the side and layers across, or the other way round where there are more layers."""
    from rich.table import Table

    cells = [
        [f"{r:.2f} ({c:.2f})" for r, c in zip(row, control, strict=True)]
        for row, control in zip(scores.score.tolist(), scores.control.tolist(), strict=True)
    ]
    layers, tokens = [str(layer) for layer in range(len(cells))], list(scores.tokens)
    table = Table()
    if len(layers) > len(tokens):
        corner, across, down, rows = "layer", tokens, layers, cells
    else:
        corner, across, down, rows = "token \\ layer", layers, tokens, list(map(list, zip(*cells, strict=True)))
    table.add_column(corner, justify="right")
    for name in across:
        table.add_column(name, justify="right")
    for name, row in zip(down, rows, strict=True):
        table.add_row(name, *row)
    print(f"R² (control) of {title}")
    _console(max(100, 16 + 16 * len(across))).print(table)


def print_attention(title: str, scores: AttentionScores) -> None:
    from rich.table import Table

    table = Table()
    for column in ("layer", "R²", "control", "looks at", "with weight"):
        table.add_column(column, justify="right")
    rows = zip(scores.layers, scores.score, scores.control, scores.attention, strict=True)
    for layer, score, control, attention in rows:
        table.add_row(str(layer), f"{score:.2f}", f"{control:.2f}", scores.looks_at(layer), f"{attention.max():.2f}")
    print(f"{title}, by a probe with attention over positions")
    _console().print(table)


def _console(width: int = 140) -> Any:
    """A pipe has no width: do not squeeze a table into eighty columns there."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=width)
