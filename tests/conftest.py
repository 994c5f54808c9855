"""What every test runs under: one thread a worker, and the same examples every time."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "emulon",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("emulon")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The workers already take all the cores: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
