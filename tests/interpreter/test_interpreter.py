"""The frozen module: any head by prompt, a capacity that is kept to, a hash that never changes."""

import pytest
import torch
from library import dataset
from torch import Tensor, nn

from emulon.algorithms import LogisticRegression
from emulon.attention import Head
from emulon.core.errors import BadShape, EmulonError, OutOfDomain
from emulon.interpreter import Capacity, Interpreter, compile


@pytest.fixture(scope="module")
def small() -> Interpreter:
    return Interpreter(Capacity(features=6, tokens=20, width=5, reach=30.0))


def head(seed: int, width: int = 5, features: int = 6) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(width, features, generator=generator, dtype=torch.float64) for _ in range(3))


def tokens(count: int = 12, features: int = 6) -> Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(4))
def test_emulates_any_head_it_is_prompted_with(seed: int, small: Interpreter):
    weights, x = head(seed), tokens()
    torch.testing.assert_close(small(x, *weights), Head(*weights)(x), rtol=0.0, atol=1e-9)


def test_elsewhere_it_is_a_copy_that_promises_the_same(small: Interpreter):
    there = small.on("meta")
    assert small.on("cpu") is small and there.device.type == "meta" != small.device.type
    assert there.identity is small.identity and there.capacity == small.capacity


def test_is_frozen(small: Interpreter):
    assert not list(small.parameters())
    assert isinstance(small, nn.Module)
    before = small.sha256
    small(tokens(), *head(0))
    assert small.sha256 == before == Interpreter(Capacity(6, 20, 5, 30.0)).sha256
    assert before != Interpreter(Capacity(6, 20, 6, 30.0)).sha256


@pytest.mark.parametrize("prompt", [(21, 6, 5), (12, 7, 5), (12, 6, 6)])
def test_prompts_beyond_the_capacity_are_refused(prompt: tuple[int, int, int], small: Interpreter):
    count, features, width = prompt
    with pytest.raises(BadShape, match="this interpreter takes 20, 6 and 5") as caught:
        small(tokens(count, features), *head(0, width, features))
    assert "\n" not in str(caught.value)


def test_numbers_beyond_the_reach_are_refused(small: Interpreter):
    with pytest.raises(OutOfDomain, match="W_K x"):
        small(100 * tokens(), *head(0))
    with pytest.raises(OutOfDomain, match="NaN"):
        small(float("nan") * tokens(), *head(0))


def test_programs_beyond_the_capacity_are_refused_on_both_paths(small: Interpreter):
    x, y = dataset("label")
    program = compile(LogisticRegression(steps=2), data=(x, y), tolerance=1e-3)
    for mode in ("fast", "reference"):
        with pytest.raises(BadShape, match=r"Interpreter\.fitting"):
            small.run(program, x, y, mode=mode)
    needed = program.capacity
    short = Interpreter(Capacity(needed.features, needed.tokens - 1, needed.width, needed.reach))
    with pytest.raises(BadShape, match=f"{needed.tokens} tokens"):
        short.run(program, x, y)


def test_dtypes_are_not_mixed():
    x, y = dataset("label")
    single = compile(LogisticRegression(steps=2), data=(x, y), tolerance=1e-2, dtype=torch.float32)
    double = compile(LogisticRegression(steps=2), data=(x, y), tolerance=1e-2)
    with pytest.raises(EmulonError, match="one dtype"):
        Interpreter.fitting(single, double)
    with pytest.raises(EmulonError, match="float32"):
        Interpreter.fitting(double).run(single, x, y)
