"""Streams of random numbers: one for each step of each seed."""

from emulon.tasks import stream_seed


def test_stream_seeds_are_spread_and_positive():
    seeds = {stream_seed(seed, step) for seed in range(30) for step in range(-1, 30)}
    assert len(seeds) == 30 * 31 and all(0 <= seed < 2**63 for seed in seeds)
