"""Runs on another device: nothing of a run may be made, or left, where its data are not.

There is no such device on most machines, so that one is pretended: tensors there are plain ones that say they are
elsewhere, and meet no others. What it computes are the same numbers.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from library import case
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves

from emulon.core.errors import EmulonError, NotCertified
from emulon.interpreter import Interpreter, Program, module
from emulon.interpreter.modes import Fast

FAR = torch.device("meta")  # which torch knows, and nothing computes on


class Far(Tensor):
    """A tensor that is said to be elsewhere."""


class Elsewhere(TorchFunctionMode):
    """Tensors made on FAR, or moved there, are `Far`, and so is what comes of them; `asked` counts what hosts ask."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), resolve_name(func) or ""
        if name == "torch.Tensor.device.__get__":
            return FAR if isinstance(args[0], Far) else func(*args)
        if func.__name__ == "_parse_to":  # what a module was asked to move to
            return func(*args, **kwargs)
        self.asked += name.rsplit(".", 1)[-1] in ("item", "tolist", "nonzero", "unique", "__bool__", "numpy")
        leaves = tree_leaves((args, kwargs))
        devices = [part for part in leaves if isinstance(part, torch.device)]
        moved, home = FAR in devices, name.endswith(".cpu") or torch.device("cpu") in devices
        swapped = [torch.device("cpu") if isinstance(part, torch.device) else part for part in args]
        kwargs = {key: torch.device("cpu") if isinstance(part, torch.device) else part for key, part in kwargs.items()}
        tensors = [part for part in leaves if isinstance(part, Tensor) and part.ndim]
        if not moved and len({isinstance(part, Far) for part in tensors}) > 1:
            raise AssertionError(f"{name} meets tensors of two devices")
        out = func(*swapped, **kwargs)
        if moved or home:
            return out.as_subclass(Far if moved else Tensor)
        return out


CASES = [("ridge", "fast"), ("lasso", "fast"), ("lasso", "reference"), ("poisson_regression", "fast")]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_run_stays_where_it_is_sent(
    name: str, mode: Any, programs: dict[str, Program], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "FEW", 100)  # above, numbers are read quickly
    program, data = programs[name].changed(steps=2, step_from_data=False), case(name)
    interpreter = Interpreter.fitting(program)
    here = interpreter.run(program, data.x, data.y, mode)
    with Elsewhere():
        there = interpreter.run(program, data.x, data.y, mode, device=FAR)
        assert isinstance(there.iterates, Far) and isinstance(there.x, Far)
        assert not isinstance(there.weights, Far) and there.audit.bound == here.audit.bound
        assert torch.equal(there.predict(data.x[:3]), here.predict(data.x[:3]))
    assert torch.equal(there.weights, here.weights) and there.sha256 == here.sha256


def test_what_was_left_here_is_noticed():
    with Elsewhere(), pytest.raises(AssertionError, match="two devices"):
        torch.ones(2, device=FAR) + torch.ones(2)


def test_a_step_asks_the_host_for_nothing(programs: dict[str, Program]):
    """So that it can be recorded as a CUDA graph."""
    for name in ("ridge", "lasso", "logistic_regression"):
        program, data = programs[name], case(name)
        effective = program.loss.template_data(data.x, data.y)
        steps = program.steps_on(Interpreter.fitting(program), effective, "cuda_graph")
        w = torch.zeros_like(data.x[0])
        with Elsewhere() as watch:
            assert torch.equal(steps._shrunk(steps._descended(w, w)), Fast.step(steps, w, w))
            once = watch.asked
            steps._shrunk(steps._descended(w, w))
        assert watch.asked == once and bool(once) == (name == "lasso")  # whose half-way weights are looked at


def test_a_step_is_captured_on_a_gpu_only(programs: dict[str, Program]):
    program, data = programs["ridge"], case("ridge")
    with pytest.raises(EmulonError, match="recorded on a GPU; give device='cuda', or take mode fast"):
        Interpreter.fitting(program).run(program, data.x, data.y, "cuda_graph")


def test_products_of_fewer_bits_than_promised_are_refused(programs: dict[str, Program]):
    program, data = programs["ridge"], case("ridge")
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(NotCertified, match="fewer bits"):
            Interpreter.fitting(program).run(program, data.x, data.y)
    finally:
        torch.set_float32_matmul_precision("highest")
