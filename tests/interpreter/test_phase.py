"""The terms of a program's certificate, computed a second time by the checker, which shares no code with it."""

from dataclasses import replace
from pathlib import Path

import pytest

from emulon.certify import checker
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter import Interpreter, Program, save
from emulon.interpreter.certificate_file import of_line

# Momentum, acceleration, batches, a fixed part, no labels: every term is somewhere what it is because of one of these.
# A second phase is in `test_certificate_file`.
NAMES = ["heavy_ball", "logistic_regression", "mini_batch_descent", "nesterov", "poisson_regression", "ridge"]


@pytest.fixture(scope="module")
def small(programs: dict[str, Program]) -> Interpreter:
    return Interpreter.fitting(*(programs[name] for name in NAMES))


@pytest.fixture(scope="module")
def second(
    programs: dict[str, Program], small: Interpreter, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict]:
    """What the checker makes of the same claims, all programs on one interpreter."""
    folder, found = tmp_path_factory.mktemp("second"), {}
    save(small, folder / "interpreter")
    section = checker.section_of(str(folder / "interpreter"))
    with ball_arithmetic(checker.PRECISION, checker.ORDER + 1):
        line, _ = of_line(small, small.identity.reach, checker.Softmax(section))
        for name in NAMES:
            program, file = programs[name], Path(folder / name)
            save(program, file)
            claims = {"line": line, "gradient": vars(program.gradient_bounds)}
            made = {"program": checker.section_of(str(file)), "interpreter": section, "claims": claims}
            found[name] = checker.Certificate(made).follows()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_term_is_the_checkers_own(name: str, second, programs: dict[str, Program], small: Interpreter):
    # On a line with the errors that the checker finds: those that the library proves of it are a little smaller.
    promised = programs[name].certificate_on(replace(small.identity, errors=tuple(map(float, second[name]["line"]))))
    found = {term: float(value) for term, value in second[name]["terms"].items()}
    assert found == pytest.approx(promised.terms, rel=1e-5, abs=0.0)
    assert promised.bound == pytest.approx(float(second[name]["bound"]), rel=1e-5, abs=0.0)


def test_the_lines_errors_are_the_checkers_own(second, small: Interpreter):
    line = small.identity
    assert list(map(float, second["ridge"]["line"])) == pytest.approx(line.errors, rel=2e-2, abs=0.0)
    assert [line.error(reach) for reach in line.reaches] == list(line.errors)
    assert line.error(line.reach * 1.001) == float("inf")
