"""The pytest plug-in: with emulon installed, any test suite has the fixture `known_answers`.

def test_known_answers(known_answers):
    known_answers(lambda folder: MyEngine(folder).logits)
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def known_answers() -> Callable[..., None]:
    """`emulon.canary.assert_known_answers`, for an engine's own tests."""
    from emulon.canary import assert_known_answers

    return assert_known_answers
