"""What every test runs under: one thread a worker, the same examples every time, a cache of the session's own."""

import atexit
import builtins
import gc
import math
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from inspect import isclass
from types import FunctionType
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "emulon", deadline=None, derandomize=True, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("emulon")

# A shell that starts us in the background has interrupts ignored, also in every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


SHAPED = re.compile(r"\b(" + "|".join(name for name in dir(jaxtyping) if name[:1].isupper()) + r")\[")
CALLS = 1000
with_shapes = jaxtyping.jaxtyped


def checked(thing: Any = None, *, typechecker: Callable[[Any], Any] | None = None) -> Any:
    """What checks types at run time: by beartype, and dimensions of one name against each other where there are some.

    jaxtyping's own way checks arguments twice and binds them by name, on functions without shapes, too: half of the
    time of all tests. A function inside another would be compiled anew whenever the other runs; mypy has looked at it,
    and at what a function without shapes is given after its first thousand calls.
    """
    if thing == "context":
        return with_shapes(thing)
    assert typechecker is not None
    if thing is None:
        return lambda each: checked(each, typechecker=typechecker)
    if isclass(thing):
        if is_dataclass(thing):
            thing.__init__ = checked(thing.__init__, typechecker=typechecker)
        return thing
    if not isinstance(thing, FunctionType):
        return with_shapes(thing, typechecker=typechecker)
    if "<locals>" in thing.__qualname__:
        return thing
    inner, left = None, math.inf

    @wraps(thing)
    def at_last(*args: Any, **kwargs: Any) -> Any:
        nonlocal inner, left
        if jaxtyping.config.jaxtyping_disable:
            return thing(*args, **kwargs)
        if inner is None:  # at its first call, when everything that annotations name is defined
            inner, left = with_checks(thing, typechecker)
        left -= 1
        if not left:
            inner = thing
        return inner(*args, **kwargs)

    return at_last


def with_checks(thing: FunctionType, typechecker: Callable[[Any], Any]) -> tuple[Callable[..., Any], float]:
    """The function with checks, and for how many calls."""
    words = " ".join(map(str, thing.__annotations__.values()))
    names = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", re.sub(r"\"[^\"]*\"|'[^']*'", "", words)))
    # names that are imported for type checkers alone, as sympy's: only they can say whether these are kept
    if names - set(thing.__globals__) - set(dir(builtins)):
        return thing, math.inf
    beartyped = typechecker(thing)
    # a shape may have a name of its own, as Integers
    if not SHAPED.search(words) and not any("jaxtyping" in repr(thing.__globals__.get(name)) for name in names):
        return beartyped, CALLS

    def with_dimensions(*args: Any, **kwargs: Any) -> Any:
        with with_shapes("context"):
            return beartyped(*args, **kwargs)

    return with_dimensions, math.inf


jaxtyping.jaxtyped = checked


def pytest_collection_finish() -> None:
    """What collection made lives as long as the worker: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


# The workers of a session share what one of them has compiled; no session believes what another left behind.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["EMULON_CACHE"] = tempfile.mkdtemp(prefix="emulon-cache-")
    atexit.register(shutil.rmtree, os.environ["EMULON_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The workers already take all the cores: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def unchecked():
    """What a user sees: outside the tests nothing looks at shapes before emulon itself does."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def chromium():
    """A real browser."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no chromium here; apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def corpora(tmp_path_factory):
    """A few sentences as corpora, by task."""
    import few_texts

    import reproduce.text.tasks  # noqa: F401 (registers the tasks that read them)

    folder = tmp_path_factory.mktemp("corpora")
    few_texts.translations().save(folder / "translation.safetensors")
    few_texts.topics().save(folder / "classification.safetensors")
    return {name: str(folder / f"{name}.safetensors") for name in ("translation", "classification")}
