"""The whole library on real tables: every algorithm of the library, one interpreter for all tables, two dtypes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from emulon.algorithms import GradientDescent, Loss, NamedAlgorithm
from emulon.core.errors import OutOfDomain
from emulon.interpreter import Interpreter, Program, compile
from emulon.report.figure import Figure, Panel, Series
from emulon.run import kind_of, runnable
from emulon.tables import BadData
from emulon.tables.data import Data, load
from reproduce.bounded import largest
from reproduce.claim import CannotTest, Claim, Numbers, Scale, Setting, Verdict
from reproduce.library import dataset

TOLERANCE = {"float64": 1e-10, "float32": 1e-3}
# Asked of smooth losses and of losses with a kink, in float64.
SMOOTH, KINKED = 1e-10, 1e-6
# Too many columns for anything but ridge to be well posed.
RIDGE_ALONE = "ames, all columns"


@dataclass(frozen=True)
class Case:
    """One algorithm on one table."""

    table: str
    name: str
    algorithm: NamedAlgorithm | GradientDescent
    x: Tensor
    y: Tensor


def run(setting: Setting) -> Numbers:
    """By dtype: the hashes, and for every case its error, bound, whether ℓ′ has a kink, whether it entered a band.

    Poisson's curvature is watched along the way, within its bound of the state: where float32 can promise too little
    for that, the run is refused, and kept as such.
    """
    cases = [case for table in setting.sizes["tables"] for case in cases_of(table, setting)]
    found: Numbers = {}
    for part, name in enumerate(setting.sizes["dtypes"]):
        programs = []
        for done, case in enumerate(cases):
            at = (part + 0.5 * done / len(cases)) / len(setting.sizes["dtypes"])
            setting.report_progress(f"{name}: compiling {case.name}, {case.table}", at)
            data = case.x, case.y
            programs.append(compile(case.algorithm, data=data, tolerance=TOLERANCE[name], dtype=getattr(torch, name)))
        interpreter = Interpreter.fitting(*programs)
        hashes, rows, refused = {interpreter.sha256}, [], []
        for done, (case, program) in enumerate(zip(cases, programs, strict=True)):
            at = (part + 0.5 + 0.5 * done / len(cases)) / len(setting.sizes["dtypes"])
            setting.report_progress(f"{name}: running {case.name}, {case.table}", at)
            try:
                row, seen = measured(interpreter, program, case)
            except OutOfDomain as error:
                refused.append(f"{case.name}, {case.table}: {error}")
                continue
            rows.append(row)
            hashes |= seen
        found[name] = {"rows": rows, "hashes": sorted(hashes), "refused": refused}
    return found


def cases_of(table: str, setting: Setting) -> list[Case]:
    steps, made = setting.sizes["steps"], []
    data = None if table == "random" else read(table)
    for name, named in runnable().items():
        if (table == RIDGE_ALONE and name != "ridge") or (data is not None and kind_of(named) != data.kind):
            continue
        algorithm = named(steps=steps)  # type: ignore[call-arg]  # every one that runs takes it
        if data is None:
            x, y = dataset(name, 200, 8, setting.seed)
        else:
            x, y = data.problem(algorithm.descent.loss)
        made.append(Case(table, name, algorithm, x, y))
    if data is None:
        own = GradientDescent(Loss.of("sqrt(1 + t**2)", curvature=1.0), steps)
        made.append(Case(table, "sqrt(1 + t²)", own, *dataset("ridge", 200, 8, setting.seed)))
    return made


def read(table: str) -> Data:
    try:
        return load("ames", features=0) if table == RIDGE_ALONE else load(table)
    except BadData as error:
        raise CannotTest(str(error)) from None


def measured(interpreter: Interpreter, program: Program, case: Case) -> tuple[Numbers, set[str]]:
    run = interpreter.run(program, case.x, case.y)
    # The promise is about the data as the dtype holds them, and the step size as it was compiled.
    exact = replace(case.algorithm.descent, step_size=program.step_size)
    row = {
        "table": case.table,
        "samples": case.x.shape[-2],
        "features": case.x.shape[-1],
        "algorithm": case.name,
        "error": largest(run.weights.double(), exact.run(run.x.double(), run.y.double())),
        "bound": interpreter.certificate(program).bound,
        "kink": bool(program.descent.l1) or program.gradient.grid.way == "piecewise",
        "in_band": run.entered_band,
    }
    return row, set(run.sha256)


def judge(numbers: Numbers) -> Verdict:
    """One hash a dtype; in float64 the asked distances; in both no error above its bound, bands apart."""
    every = [row for part in numbers.values() for row in part["rows"]]
    same = all(len(part["hashes"]) == 1 for part in numbers.values())
    kept = all(row["error"] <= row["bound"] or row["in_band"] for row in every)
    worst = {key: _worst(numbers["float64"]["rows"], key == "kinked") for key in ("smooth", "kinked")}
    single = _worst(numbers.get("float32", {"rows": []})["rows"], None)
    names = {row["algorithm"] for row in every}
    refused = [line.partition(":")[0] for part in numbers.values() for line in part["refused"]]
    ours = f"{len(names)} algorithms, {len(every)} runs: smooth {worst['smooth']:.0e}, kinks {worst['kinked']:.0e}"
    ours += f"; float32 {single:.0e}" if single else ""
    ours += _in_bands(every)
    ours += f"; refused in float32: {'; '.join(refused)}" if refused else ""
    reason = f"{'one hash a dtype' if same else 'a hash changed'}; {'no' if kept else 'an'} error above its bound; "
    reason += f"asked: {SMOOTH:g} and {KINKED:g} in float64"
    near = worst["smooth"] <= SMOOTH and worst["kinked"] <= KINKED and not numbers["float64"]["refused"]
    return Verdict.that(same and kept and near and len(names) >= 12, ours, reason)


def _in_bands(rows: list[Numbers]) -> str:
    """Runs in which a residual came into the band of a jump: no promise is made there, and they are not counted."""
    inside = [row for row in rows if row["in_band"]]
    if not inside:
        return ""
    worst = max(inside, key=lambda row: row["error"] / row["bound"])
    return (
        f"; not counted, as a residual came into the band of a jump: {len(inside)} runs, up to {worst['error']:.0e} "
        f"where the bound is {worst['bound']:.0e} ({worst['algorithm']}, {worst['table']})"
    )


def _worst(rows: list[Numbers], kink: bool | None) -> float:
    """The largest error, runs apart in which a residual came into the band of a jump."""
    counted = [row for row in rows if not row["in_band"] and (kink is None or row["kink"] == kink)]
    return max((row["error"] for row in counted), default=0.0)


def figure(numbers: Numbers) -> Figure:
    panels = []
    for table in dict.fromkeys(row["table"] for row in numbers["float64"]["rows"]):
        series = []
        for dtype, part in numbers.items():
            rows = [row for row in part["rows"] if row["table"] == table]
            names = [row["algorithm"].removesuffix("_regression").replace("_", "\n") for row in rows]
            series.append(Series(f"error, {dtype}", names, [max(row["error"], 1e-17) for row in rows], mark="bars"))
        panels.append(Panel("", "distance of the final weights", series, title=table, log_y=True))
    return Figure(panels)


CLAIM = Claim(
    name="ours-real-data",
    source="ours, real data",
    statement="One frozen module runs the library on real tables to the exact weights, within its certificates.",
    theirs="smooth losses within 1e-10, losses with a kink within 1e-6 (our own aim; no source has run it)",
    scales={
        "small": Scale(
            2, {"tables": ["diabetes", "breast_cancer", "random"], "dtypes": ["float64", "float32"], "steps": 200}
        ),
        "paper": Scale(
            8,
            {
                "tables": ["diabetes", "breast_cancer", "random", "ames", RIDGE_ALONE],
                "dtypes": ["float64", "float32"],
                "steps": 200,
            },
        ),
    },
    run=run,
    judge=judge,
    figure=figure,
)
