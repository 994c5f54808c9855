"""Checks see what a user sees: outside the tests nothing looks at shapes before emulon itself does."""

import jaxtyping
import pytest


@pytest.fixture(autouse=True)
def unchecked():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
