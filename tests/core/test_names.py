"""Registries answer unknown names with the nearest; module names of 0.2 still work, with a warning."""

import importlib
import sys

import pytest

from emulon.core.errors import EmulonError
from emulon.core.names import RENAMED, Registry


def test_items_are_found_by_name_and_an_unknown_one_is_refused_with_the_nearest():
    fruit = Registry[object]("fruit")

    @fruit.register
    class GreenApple:
        pass

    fruit.register(pear := object(), "pear")
    assert list(fruit) == ["green_apple", "pear"]
    assert fruit.named("green_apple") is GreenApple and fruit.named("pear") is pear
    with pytest.raises(EmulonError, match="there is no fruit 'paer'; did you mean pear"):
        fruit.named("paer")


def test_an_earlier_module_name_warns_and_is_the_module_of_today(monkeypatch):
    for old, new in RENAMED.items():
        monkeypatch.delitem(sys.modules, f"emulon.{old}", raising=False)
        with pytest.warns(DeprecationWarning, match=f"emulon.{new} since 0.3"):
            module = importlib.import_module(f"emulon.{old}")
        assert module is importlib.import_module(f"emulon.{new}")
        assert module.__name__ == module.__spec__.name == f"emulon.{new}"
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        importlib.import_module("emulon.nowhere")
