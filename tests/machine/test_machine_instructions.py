"""Each instruction alone, over its whole domain, in float64 and float32."""

from __future__ import annotations

import pytest
import torch
from machine_cases import CASES, Case

# Relative to the largest result the domain allows, which is what a bound over a domain can promise.
WANTED = {torch.float64: {"div": 1e-8, "": 1e-9}, torch.float32: {"": 1e-3}}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_error_is_small_and_below_the_certificate(case: Case, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = case.program().compile(dtype)
    target = model.program.output.name
    worst = largest = 0.0
    for corners in (False, True):
        inputs = case.draw(60, dtype, corners=corners)
        exact = case.exact(**{name: values.double() for name, values in inputs.items()})
        worst = max(worst, model.certificates[target].verify(model.run(**inputs)[target], exact))
        largest = max(largest, exact.abs().max().item())
    print(f"{case.name:20s} {dtype} relative {worst / largest:.1e}, certified {model.certificate.bound / largest:.1e}")
    assert worst / largest <= WANTED[dtype].get(case.name, WANTED[dtype][""])


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("dot", "mul", "div")], ids=lambda case: case.name
)
def test_the_certificate_itself_promises_the_wanted_precision_in_float64(case: Case) -> None:
    model = case.program().compile()
    exact = case.exact(**case.draw(60, torch.float64, corners=True))
    assert model.certificate.bound <= WANTED[torch.float64].get(case.name, 1e-9) * exact.abs().max().item()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_instruction_is_one_layer(case: Case) -> None:
    """div's case has an aff before it, whose result its attention reads."""
    program = case.program()
    assert program.compile().depth == len(program.instructions) == (2 if case.name == "div" else 1)


def test_small_results_are_relatively_right_too() -> None:
    """Down to 1/1000 of the largest result, each entry by itself is right to 1e-9."""
    torch.manual_seed(0)
    case = next(case for case in CASES if case.name == "dot")
    model, inputs = case.program().compile(), case.draw(500, torch.float64, corners=False)
    exact = case.exact(**inputs)
    big = exact.abs() > 1e-3 * exact.abs().max()
    relative = ((model.run(**inputs)["c"] - exact).abs() / exact.abs())[big]
    assert relative.max() < 1e-9


def test_a_moved_scale_breaks_the_product() -> None:
    """The accuracy comes from the compiled weights: change one by a millionth and it shows."""
    case = next(case for case in CASES if case.name == "dot")
    model, inputs = case.program().compile(), case.draw(20, torch.float64, corners=True)
    before = model.run(**inputs)["c"]
    model.blocks[0].outward *= 1 + 1e-6
    assert (model.run(**inputs)["c"] - before).abs().max() > 1e-7
