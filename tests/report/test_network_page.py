"""The page of a network: its layers as phases, and nothing fetched."""

import pytest
import torch
from torch import nn

from emulon import compile_network
from emulon.networks import Heads
from emulon.report.learners import write_network


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    heads = Heads(*(torch.randn(1, 2, 2, dtype=torch.float64) for _ in range(3)), causal=True)
    network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), heads, nn.ReLU())
    x = torch.randn(3, 4, 2, dtype=torch.float64)
    return compile_network(network, data=x)(x)


def test_every_phase_is_told_with_its_cost_and_its_error(run, tmp_path, on_a_phone):
    page = write_network(run, tmp_path)
    text = page.read_text()
    for phase in run.program.phases:
        assert f">{phase.layer.name}</td>" in text and phase.description()[:20] in text
    # Linear: a token for each of 4 positions of 3 rows; tanh: two keys, 24 numbers; ReLU: two tokens for each of 24.
    for tokens, keys in (("12", "1"), ("24", "2"), ("12", "4"), ("48", "2")):
        assert f"<td>{tokens}</td><td>{keys}</td>" in text
    assert f"{run.audit.bound:.1e}" in text and run.interpreter.sha256 in text and "Unchanged" in text
    seen = on_a_phone(page)
    assert seen.said == [] and seen.pictures == 1
    assert seen.needed <= seen.width, "the page is wider than a phone"
