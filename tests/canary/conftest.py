"""Canaries with some of their four prompts: exact answers take most of the time."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module

import pytest
import torch

from emulon.canary import canary


@pytest.fixture(autouse=True, scope="module")
def few_prompts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Those that the module names."""
    torch.set_num_threads(1)
    checks = import_module("emulon.canary.check")  # in the package `check` is its function
    few = cache(lambda name: replace(canary(name), prompts=canary(name).prompts[request.module.PROMPTS]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "canary", few)
        patch.setattr(checks, "answers", cache(checks.answers.__wrapped__))
        yield
