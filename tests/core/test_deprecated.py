"""Module names of 0.2 keep working for one release, with a warning."""

import importlib
import sys

import pytest

from emulon.core.names import RENAMED


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_an_earlier_module_name_warns_and_is_the_module_of_today(old, monkeypatch):
    monkeypatch.delitem(sys.modules, f"emulon.{old}", raising=False)
    with pytest.warns(DeprecationWarning, match=f"emulon.{RENAMED[old]} since 0.3"):
        module = importlib.import_module(f"emulon.{old}")
    assert module is importlib.import_module(f"emulon.{RENAMED[old]}")
    assert module.__name__ == module.__spec__.name == f"emulon.{RENAMED[old]}"


def test_a_name_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        importlib.import_module("emulon.nowhere")
