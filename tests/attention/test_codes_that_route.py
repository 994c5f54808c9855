"""Codes: how far apart they are is what they claim, and they stay short."""

import math

import pytest
import torch

from emulon.attention.codes import circular, one_hot


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("samples", [1, 2, 6, 7, 8, 12, 20, 31, 100, 255, 256, 442, 1000, 2000])
def test_no_two_codes_are_closer_than_the_gap_and_each_knows_itself(samples, dtype):
    codes = circular(samples, dtype)
    products = codes.vectors.double() @ codes.vectors.double().T
    own = products.diagonal()
    others = (products - 10 * torch.eye(samples)).max(dim=1).values
    assert (own - others).min() >= codes.gap > 0.1
    assert codes.width <= 8


def test_a_gap_is_not_much_less_than_what_it_could_be():
    codes = circular(442, torch.float64)
    products = codes.vectors @ codes.vectors.T - 10 * torch.eye(442)
    assert codes.gap >= 1 - products.max().item() - 1e-10 and codes.gap >= 0.25


@pytest.mark.parametrize("samples", [1, 3, 6])
def test_few_samples_take_the_shorter_one_hot_code(samples):
    assert torch.equal(circular(samples, torch.float64).vectors, one_hot(samples, torch.float64).vectors)
    assert one_hot(samples, torch.float64).gap == 1.0


def test_more_circles_make_a_wider_gap():
    gaps = [circular(300, torch.float64, pairs).gap for pairs in (1, 2, 3, 5)]
    assert gaps == sorted(gaps) and gaps[0] == pytest.approx(1 - math.cos(2 * math.pi / 300), rel=1e-3)


@pytest.mark.parametrize("samples", [40_000, 140_000])
def test_codes_of_many_samples_are_apart_at_every_shift_that_is_looked_at(samples):
    """All pairs of them would not fit: some codes are compared with all."""
    codes = circular(samples, torch.float64)
    some = torch.randint(samples, (20,), generator=torch.Generator().manual_seed(0))
    products = codes.vectors[some] @ codes.vectors.T
    products[torch.arange(20), some] = -1.0
    assert products.max().item() <= 1 - codes.gap and codes.gap > 0.05
    assert codes.width <= 2 * math.log2(samples)
