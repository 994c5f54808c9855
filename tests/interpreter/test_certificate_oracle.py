"""The oracle of certificates: the checker, which shares no code with the library, derives every term a second time."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from by_hand import BOUNDS, DOMAIN, GRID, phase, program

from emulon.algorithms import as_loss
from emulon.certify import Domain, Spectrum, checker
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter import Capacity, Interpreter, Program, save
from emulon.interpreter.certificate_file import of_line
from emulon.softmax import Grid

f32, f64 = torch.float32, torch.float64
# Compiled programs: momentum, acceleration, batches, a fixed part, labels without y.
NAMES = ["heavy_ball", "logistic_regression", "mini_batch_descent", "nesterov", "poisson_regression", "ridge"]
# λ between 1/2 and 2, an ℓ″ down to −0.2.
CURVED = {"domain": replace(DOMAIN, spectrum=Spectrum(largest=2.0)), "strong_convexity": 0.5, "negative_curvature": 0.2}


def penalised(readout: str, grid: Grid = GRID) -> Program:
    domain = Domain(3, 3, 1.0, 0.0, 2.0)
    proximal = phase(domain=domain, name="proximal", readout=readout)
    return program(replace(proximal, grid=grid, proved=replace(BOUNDS, interpolation=1e-4)), l1=0.1)


def narrow(made: Program) -> Program:
    """In float32."""

    def part(one):
        values = {name: getattr(one.grid, name).to(f32) for name in ("slopes", "intercepts", "values")}
        codes = replace(one.codes, vectors=one.codes.vectors.to(f32))
        return replace(one, grid=replace(one.grid, **values), codes=codes)

    return replace(made, gradient=part(made.gradient), proximal=made.proximal and part(made.proximal))


def by_hand() -> dict[str, Program]:
    """Programs whose numbers make every term, and every way in which errors grow, matter somewhere."""
    large = replace(GRID, values=torch.tensor([1.0, -40.0, 2.0], dtype=f64))
    leaky = program()
    leaky = replace(leaky, gradient=replace(leaky.gradient, proved=replace(BOUNDS, leak=1e-2), strength=4.0))
    strong = {size: narrow(replace(program(), gradient=phase(size))) for size in (1e3, 1e8)}
    calm = program()
    calm = replace(calm, gradient=replace(calm.gradient, proved=replace(BOUNDS, deviation=1e-9, size=1e-3)))
    broad = Domain(samples=2, features=12, x=2.0, y=1.0, w=0.5, residual=1.5, spectrum=Spectrum(largest=1.0))
    return {
        "plain": program(),
        "curved": program(**CURVED, max_step_times_smoothness=1.0),
        "steep": program(**CURVED),
        "barely convex": program(**CURVED | {"strong_convexity": 1e-3}, max_step_times_smoothness=1.0),
        "momentum": program(**CURVED | {"negative_curvature": 0.0}, momentum=0.36),
        "ahead": program(accelerated=True, max_step_times_smoothness=1.0, **CURVED | {"negative_curvature": 0.0}),
        "ahead, steep": program(accelerated=True, **CURVED),
        "no step": program(steps=0),
        "fixed": program(loss=as_loss("poisson"), **CURVED | {"strong_convexity": 0.0}),
        "sum": penalised("sum"),
        "rest": penalised("rest"),
        "large values": penalised("sum", large),
        "leak": leaky,
        "rounding": calm,
        "many features": replace(program(domain=broad, rows=2), gradient=phase(domain=broad)),
        "float32": narrow(program(**CURVED)),
        "float32, rest": narrow(penalised("rest")),
        "float32, fixed": narrow(program(loss=as_loss("poisson"))),
        "float32, leak by emulation": strong[1e3],
        "float32, no routing": strong[1e8],
    }


class Second:
    """The checker's view of programs on one interpreter, whose proofs are made once."""

    def __init__(self, interpreter: Interpreter, folder: Path) -> None:
        self.interpreter, self.folder = interpreter, folder
        save(interpreter, folder / "interpreter")
        self.section = checker.section_of(str(folder / "interpreter"))
        with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
            self.line, _ = of_line(interpreter, interpreter.identity.reach, checker.Softmax(self.section))

    def derive(self, made: Program) -> dict[str, dict]:
        """What follows from the program's file and what is proved of its softmaxes."""
        save(made, self.folder / "program")
        claims = {"line": self.line} | {each.name: vars(each.proved) for each in made.phases}
        content = {"program": checker.section_of(str(self.folder / "program")), "interpreter": self.section}
        with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
            return checker.Certificate(content | {"claims": claims}).follows()


def test_every_term_is_the_checkers_own(programs: dict[str, Program], tmp_path: Path):
    second = {dtype: Second(Interpreter(Capacity(1, 1, 1, 40000.0), dtype), tmp_path) for dtype in (f32, f64)}
    wrong = []
    for name, made in (by_hand() | {name: programs[name] for name in NAMES}).items():
        known = second[made.dtype].interpreter.identity
        found = second[made.dtype].derive(made)
        # On a grid with the errors that the checker finds, which are a little larger than the library's.
        ours = made.certificate_on(replace(known, errors=tuple(map(float, found["line"]))))
        theirs = {term: float(value) for term, value in found["terms"].items()} | {"bound": float(found["bound"])}
        mine = dict(ours.terms) | {"bound": ours.bound}
        wrong += [
            (name, t, mine[t], value)
            for t, value in theirs.items()
            if mine[t] != pytest.approx(value, rel=1e-5, abs=0.0)
        ]
    assert not wrong


def test_the_grids_errors_are_the_checkers_own(tmp_path: Path):
    line = Interpreter(Capacity(1, 1, 1, 200.0)).identity
    found = Second(Interpreter(Capacity(1, 1, 1, 200.0)), tmp_path).derive(program())
    assert list(map(float, found["line"])) == pytest.approx(line.errors, rel=2e-3, abs=0.0)
    assert [line.error(reach) for reach in line.reaches] == list(line.errors)
    assert line.error(line.reach * 1.001) == float("inf")


def test_the_checker_grants_a_jump_what_lies_in_the_cell_that_holds_it(tmp_path: Path):
    made = program(loss=as_loss("perceptron"))
    made = replace(made, gradient=replace(made.gradient, proved=replace(BOUNDS, interpolation=1e-15)))
    interpreter = Interpreter(Capacity(1, 1, 1, 200.0))
    found = Second(interpreter, tmp_path).derive(made)["terms"]["interpolation"]
    ours = made.certificate_on(interpreter.identity).terms["interpolation"]
    wanted = ours * (1 + 2 * float(checker.BREAK) * BOUNDS.size / 1e-15)
    assert float(found) == pytest.approx(wanted, rel=1e-5, abs=0.0)
