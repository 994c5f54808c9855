"""Registries name what is defined elsewhere, and answer unknown names with the nearest."""

import pytest

from emulon.core.errors import EmulonError
from emulon.core.names import Registry


def test_items_are_found_by_the_names_they_were_registered_under():
    fruit = Registry[object]("fruit")

    @fruit.register
    class GreenApple:
        pass

    fruit.register(pear := object(), "pear")
    assert list(fruit) == ["green_apple", "pear"]
    assert fruit.named("green_apple") is GreenApple and fruit.named("pear") is pear


def test_an_unknown_name_is_refused_with_the_nearest():
    fruit = Registry[int]("fruit")
    fruit.register(1, "pear")
    with pytest.raises(EmulonError, match="there is no fruit 'paer'; did you mean pear"):
        fruit.named("paer")
