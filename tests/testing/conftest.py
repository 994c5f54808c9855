"""Checks see what a user sees."""

import pytest


@pytest.fixture(autouse=True)
def as_users(unchecked):
    pass
