"""The pages of learners (an analysis, the phases of a run, a run with its curves) and of a compiled network."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from emulon.core import Progress, silent
from emulon.core.files import make_folder, write_atomically, write_json
from emulon.identification import AlgorithmPhase, Analysis, Curve, Identification, Interval, RidgeFit, over_training
from emulon.interpreter.identity_grid import identity_grid
from emulon.networks import NetworkProgram, NetworkRun
from emulon.networks.program import ROWS, PhaseStatistics
from emulon.report.figure import BLUE, GREEN, GREY, INK, ORANGE, Figure, Mark, Panel, Rule, Series, chart
from emulon.report.page import fill, write_page
from emulon.report.terminal import table
from emulon.tasks import RegressionTask
from emulon.training import RunFolder, Trained

# Unexplained shares that are drawn; a mark beyond them stands at the end.
DRAWN_SHARES = (1e-9, 30.0)
# Distances are drawn up to this many times their median, so that one that diverges leaves the others readable.
DRAWN_DISTANCES = 1e3
# The kinds of Figure 3 of Akyürek et al. 2022: of several references of a kind the nearest is drawn.
KINDS = {"gradient descent": ORANGE, "ridge": GREEN, "ols": BLUE, "newton": INK}
# What is smaller is drawn here: float64 knows of no smaller squared distance between answers of size 1.
LEAST = 1e-20


def write(analysis: Analysis, folder: Path) -> Path:
    return write_page(render(analysis), folder)


def phase_row(phase: AlgorithmPhase) -> tuple[str, ...]:
    """The verdict, the nearest with its parameters, and what the nearest of each kind leaves unexplained."""
    left = [_nearest(phase.as_numbers(), kind)["value"] for kind in KINDS]
    one = phase.identification
    return one.algorithm, str(one.nearest), *(f"{value:.3g}" for value in left)


def phases_table(target: str, phases: Sequence[AlgorithmPhase]) -> Table:
    """A row for each checkpoint."""
    columns = ("steps", "algorithm", "nearest")
    rows = [(str(phase.place), *phase_row(phase)) for phase in phases]
    caption = "the last columns: what the nearest of each kind leaves unexplained"
    title = f"{target}, checkpoint by checkpoint"
    return table((*columns, *KINDS), rows, title=title, caption=caption, words=columns[1:])


def render(analysis: Analysis) -> str:
    comparison = analysis.comparison
    return fill(
        "identification.html",
        analysis=analysis,
        identification=analysis.identification,
        counts=comparison.linearity.counts,
        names=list(comparison.predictions),
        comparison=comparison,
        ranking=ranking(analysis.identification),
        predictions=distances(comparison.predictions, "E(ŷ − ŷ′)²/d"),
        weights=distances(comparison.weights, "E‖w − w′‖²/d"),
        ridge=ridge(analysis.ridge, analysis.bayes),
    )


def ranking(identification: Identification) -> str:
    """What each reference leaves unexplained, with its interval; left of the dashed line it is near."""
    matches = identification.ranking
    value, low, high = (part.clip(*DRAWN_SHARES) for part in _drawn([match.unexplained for match in matches]))
    near = [
        identification.near and (row == 0 or match.name in identification.ties) for row, match in enumerate(matches)
    ]
    names = [str(match) for match in matches]
    series = []
    for colour, chosen in ((BLUE, near), (GREY, [not each for each in near])):
        y, least, most = (np.where(chosen, part, math.nan).tolist() for part in (value, low, high))
        series.append(Series("", names, y, "points", least, most, colour=colour))
    limit = Rule("y", identification.limit, colour=ORANGE, dashed=True)
    label, size = "unexplained part of the predictor's variance", (5.6, 0.6 + 0.22 * len(matches))
    return chart(Figure([Panel("", label, series, log_y=True, across=True, rules=[limit], size=size)]))


def distances(curves: Mapping[str, Curve], what: str) -> str:
    """A line for each reference, its 95% interval around it."""
    series = []
    for name, curve in curves.items():
        value, low, high = map(np.ndarray.tolist, _drawn(curve.values))
        series.append(Series(name, curve.counts, value, low=low, high=high))
    every = [value for each in series for value in (*(each.low or ()), *(each.high or ()))]
    usual = float(np.median([each.value for curve in curves.values() for each in curve.values]))
    most = min(max(every), DRAWN_DISTANCES * usual) if usual > 0 else max(every)
    shown = (min(every) / 1.5, 1.5 * most)
    return chart(Figure([Panel("in-context examples", what, series, log_y=True, y_range=shown, size=(4.0, 3.0))]))


def ridge(fit: RidgeFit, bayes: float | None) -> str:
    """Distance to ridge regression over its parameter; dashed, the Bayes predictor's."""
    value, low, high = map(np.ndarray.tolist, _drawn(fit.differences))
    series = [
        Series("", fit.grid, value, low=low, high=high, colour=BLUE),
        Series("best", [fit.best], [max(fit.difference.value, LEAST)], "dots", colour=ORANGE),
    ]
    rules = [] if bayes is None else [Rule("x", bayes, "σ²/τ²", INK, dashed=True)]
    panel = Panel("ridge parameter λ", "E(ŷ − ŷ′)²/d", series, log_x=True, log_y=True, rules=rules, size=(4.0, 2.8))
    return chart(Figure([panel]))


def _drawn(values: Iterable[Interval]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, low and high of intervals, on a logarithmic axis."""
    table = np.array([(one.value, one.low, one.high) for one in values])
    value, low, high = np.maximum(table, LEAST).T
    return value, low, high


def phases_figure(phases: Sequence[Mapping[str, Any]]) -> str:
    """A line for each kind of reference with its interval, from the numbers of `AlgorithmPhase.as_numbers`."""
    places, series = [phase["place"] for phase in phases], []
    for kind, colour in KINDS.items():
        best = [_nearest(phase, kind) for phase in phases]
        value, low, high = ([one[end] for one in best] for end in ("value", "low", "high"))
        series.append(Series(kind, places, value, low=low, high=high, colour=colour))
    label = "unexplained part of the learner's variance"
    panel = Panel(phases[0]["axis"], label, series, log_y=True, size=(5.2, 3.2))
    return chart(Figure([panel]))


def _nearest(phase: Mapping[str, Any], kind: str) -> Mapping[str, float]:
    """The interval of the nearest reference of a kind, whose names begin with it."""
    left = [match["unexplained"] for match in phase["ranking"] if match["name"].startswith(kind)]
    return min(left, key=lambda interval: interval["value"])


def write_run(
    run: Path, folder: Path, datasets: int = 64, seed: int = 0, report_progress: Progress = silent
) -> tuple[Path, tuple[AlgorithmPhase, ...]]:
    """Identify a run at each of its checkpoints, and write its page.

    Returns:
        The page, and the algorithm at each checkpoint; none where the task is no regression.
    """
    task, phases = RunFolder(run).config().make_task(), tuple[AlgorithmPhase, ...]()
    make_folder(folder)
    if isinstance(task, RegressionTask):
        phases = tuple(over_training(run, task, report_progress=report_progress, datasets=datasets, seed=seed))
    return write_page_of_run(run, phases, folder), phases


def write_page_of_run(run: Path, phases: Sequence[AlgorithmPhase], folder: Path) -> Path:
    """From what the run's folder has kept, and its phases where it has any."""
    kept = RunFolder(run)
    config = kept.config()
    measured = kept.metrics()
    curve = _record(run, measured)
    told = {name: value for name, value in config.options().items() if value is not None}
    return write_page(
        fill(
            "training.html",
            target=str(run),
            config=config.options(),
            told=told,
            steps=(kept.kept_steps() or [0])[-1],
            curve=None if curve is None else chart(run_figure(curve)),
            course=chart(course_figure(measured)) if measured else None,
            phases=phases_figure([phase.as_numbers() for phase in phases]) if phases else None,
            kinds=list(KINDS),
            rows=[(phase.place, *phase_row(phase)) for phase in phases],
        ),
        folder,
    )


def _record(run: Path, measured: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """curve.json of a finished run; of one that is still on its way the last that was measured."""
    if (run / "curve.json").exists():
        finished: dict[str, Any] = json.loads((run / "curve.json").read_text())
        return finished
    evaluated = [line for line in measured if "curve" in line]
    if not evaluated or not (run / "baselines.json").exists():
        return None
    config = RunFolder(run).config().options()
    baselines = json.loads((run / "baselines.json").read_text())
    last = evaluated[-1]
    return {"config": config, "steps": last["step"], "curve": last["curve"], "baselines": baselines}


def course_figure(measured: Sequence[dict[str, Any]]) -> Figure:
    """The loss while training and the error on held-out prompts, over the steps."""
    marks: dict[str, tuple[str, Mark]] = {"loss": ("training loss", "line"), "error": ("held-out error", "dots")}
    series = []
    for name, (label, mark) in marks.items():
        lines = [line for line in measured if name in line]
        if lines:
            series.append(Series(label, [line["step"] for line in lines], [line[name] for line in lines], mark))
    return Figure([Panel("training steps", "squared error", series, log_y=True)])


def keep_curve(folder: Path, trained: Trained) -> None:
    """The learner's error beside the baselines', what it took, and the picture of it."""
    write_json(folder / "curve.json", trained.record())
    draw_curve(folder)


def draw_curve(folder: Path) -> None:
    """curve.svg, from curve.json alone."""
    record = json.loads((folder / "curve.json").read_text())
    write_atomically(folder / "curve.svg", chart(run_figure(record)))


def run_figure(record: Mapping[str, Any]) -> Figure:
    """One run's, from its curve.json: over in-context samples, or, where these are no part of it, over training."""
    if len(record["curve"]) == 1 and record.get("history"):
        steps, errors = zip(*((each["step"], each["error"]) for each in record["history"]), strict=True)
        series = [Series(record["config"]["model"], steps, errors)]
        series += [Series(name, steps, len(steps) * curve, "dashes") for name, curve in record["baselines"].items()]
        return Figure([Panel("training steps", record["measure"], series, title=record["config"]["task"])])
    learner = Series(record["config"]["model"], range(len(record["curve"])), record["curve"])
    return Figure([_panel(f"{record['config']['task']}, {record['steps']} steps", [learner], record["baselines"])])


def _panel(title: str, learners: Sequence[Series], baselines: Mapping[str, Sequence[float]]) -> Panel:
    """Baselines are cut off far from the learners: least squares explodes where samples and features are as many, and
    an oracle may be exact."""
    errors = [y for learner in learners for y in learner.y]
    low, high = min(errors) / 10, 3 * max(errors)
    dashed = [_cut(name, curve, low, high) for name, curve in baselines.items()]
    return Panel("in-context samples", "squared error", [*learners, *dashed], title=title, log_y=True)


def _cut(name: str, curve: Sequence[float], low: float, high: float) -> Series:
    beyond = [y for y in curve if not low <= y <= high]
    label = f"{name} (to {max(beyond, key=lambda y: abs(math.log(max(y, 1e-300)))):.0e})" if beyond else name
    shown = [y if low <= y <= high else math.nan for y in curve]
    return Series(label, range(len(curve)), shown, mark="dashes", of=name)


def write_network(run: NetworkRun, folder: Path, audited: bool = True) -> Path:
    """Write the page; `audited`: with the bound of the whole run, which takes long for a deep network."""
    phases = run.statistics()
    return write_page(
        fill(
            "network.html",
            run=run,
            audit=run.audit.bound if audited else None,
            told=network_facts(run.program),
            looked=min(ROWS, len(run.inputs)),
            rows=[_network_row(run, number, each) for number, each in enumerate(phases, start=1)],
            course=phases_of_network(run, phases),
        ),
        folder,
    )


def _network_row(run: NetworkRun, number: int, each: PhaseStatistics) -> dict[str, Any]:
    term = run.certificate.terms[each.phase.layer.name]
    return phase_facts(each.phase, run.interpreter.identity) | {
        "number": number,
        "tokens": f"{each.tokens:,}",
        "a prompt": f"{each.keys:,}",
        "term": f"{term:.1e}" if math.isfinite(term) else "–",
        "off": f"{each.distance:.1e}" if math.isfinite(each.distance) else "–",
        "milliseconds": f"{1e3 * each.seconds:.2f}",
    }


def phases_of_network(run: NetworkRun, phases: Sequence[PhaseStatistics]) -> str:
    """From phase to phase: what each may add, how far the registers are from the exact network's, and the time."""
    numbers, line = range(1, len(phases) + 1), run.interpreter.identity
    bounds = [max(each.phase.own_error(line), LEAST) for each in phases]
    off = [max(each.distance, LEAST) if math.isfinite(each.distance) else math.nan for each in phases]
    errors = [Series("register is off by", numbers, off), Series("may add", numbers, bounds, "dashes")]
    times = [Series("milliseconds", numbers, [1e3 * each.seconds for each in phases], colour=BLUE)]
    size = (3.6, 2.4)
    panels = [Panel("phase", "error", errors, log_y=True, size=size), Panel("phase", "milliseconds", times, size=size)]
    return chart(Figure(panels))


def network_facts(program: NetworkProgram) -> list[tuple[str, str]]:
    """What a network says about itself in a line each."""
    capacity, (lo, hi) = program.capacity, program.box.ends
    seen = "for every input of the domain" if program.source == "domain" else "seen on data, checked by every run"
    return [
        ("network", f"{program.name}: {program.shape} to {program.out_shape}, {len(program.phases)} phases"),
        ("inputs", f"within ({lo:.4g}, {hi:.4g}); ranges {seen}"),
        (
            "needs",
            f"{capacity.tokens} tokens of {capacity.features}, width {capacity.width}, up to {capacity.reach:.4g}",
        ),
        ("certificate", str(program.certificate)),
    ]


def phase_facts(phase: Any, line: Any) -> dict[str, str]:
    """Layer, registers, kind, prompt, range of what is written, and the error that this phase adds at most."""
    lo, hi = phase.ranges.output.ends
    return {
        "layer": phase.layer.name,
        "reads": ", ".join(map(str, phase.layer.reads)) or "–",
        "phase": phase.kind,
        "prompt": phase.description(),
        "range": f"({lo:.4g}, {hi:.4g})",
        "adds": f"{phase.own_error(line):.1e}",
    }


def network_rows(program: NetworkProgram) -> list[dict[str, str]]:
    """`phase_facts` of every phase."""
    line = identity_grid(program.capacity.reach)
    return [phase_facts(phase, line) for phase in program.phases]
