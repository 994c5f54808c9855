"""The references' batched grids compute what the algorithms compute, one setting and one prefix at a time."""

import pytest
import torch
from plain_functions import references

from emulon.core.predictor import as_predictor, predict_at
from emulon.identification import REFERENCES, Prefixes
from emulon.tasks import Linear

BY_NAME = REFERENCES


def test_every_reference_has_a_plain_function_and_there_are_at_least_twelve():
    assert [name for name, _, _ in references(0)] == list(BY_NAME) and len(BY_NAME) >= 12


@pytest.mark.parametrize("seed", range(3))
def test_references_are_the_algorithms_on_every_prefix(seed: int):
    xs, ys = Linear(4, noise=0.5).held_out(seed, 6, 11).pairs
    prefixes = Prefixes(xs, ys, tuple(range(1, 11)))
    for name, parameters, function in references(seed):
        expected = predict_at(as_predictor(function), xs, ys, prefixes.counts)
        got = BY_NAME[name].predict(prefixes, parameters)
        torch.testing.assert_close(got, expected, atol=1e-7, rtol=1e-7, msg=lambda m, name=name: f"{name}: {m}")


def test_a_grid_is_its_settings_one_by_one():
    xs, ys = Linear(3, noise=0.5).held_out(0, 5, 9).pairs
    prefixes = Prefixes(xs, ys, (2, 5, 8))
    integers, continuous = torch.tensor([1, 4, 7]), torch.tensor([0.001, 0.01, 0.1], dtype=torch.float64)
    for reference in REFERENCES.values():
        together = reference.respond(prefixes, integers, continuous)
        alone = [reference.respond(prefixes, integers[i : i + 1], continuous[i : i + 1])[0] for i in range(3)]
        torch.testing.assert_close(together, torch.stack(alone), atol=1e-12, rtol=1e-12)


def test_fewer_datasets_and_counts_are_the_same_datasets_and_counts():
    xs, ys = Linear(3, noise=0.5).held_out(0, 8, 12).pairs
    prefixes = Prefixes(xs, ys, tuple(range(1, 12)))
    some = prefixes.take(slice(2, 6), 4)
    assert len(some.counts) == 4 and some.counts[0] == 1 and some.counts[-1] == 11
    columns = [prefixes.counts.index(n) for n in some.counts]
    for reference in REFERENCES.values():
        parameters = {one.name: value for one, value in ((reference.integer, 3), (reference.continuous, 0.01)) if one}
        whole = reference.predict(prefixes, parameters)[2:6][:, columns]
        torch.testing.assert_close(reference.predict(some, parameters), whole, atol=1e-12, rtol=1e-12)
