"""What every test runs under: one thread a worker, the same examples every time, a cache of the session's own."""

import atexit
import gc
import os
import shutil
import tempfile

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "emulon",
    deadline=None,
    derandomize=True,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("emulon")


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


@pytest.fixture(scope="session")
def corpora(tmp_path_factory):
    """A few sentences as corpora, by task."""
    import few_texts

    folder = tmp_path_factory.mktemp("corpora")
    few_texts.translations().save(folder / "translation.safetensors")
    few_texts.topics().save(folder / "classification.safetensors")
    return {name: str(folder / f"{name}.safetensors") for name in ("translation", "classification")}
