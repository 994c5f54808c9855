"""On a compiled machine the answer is known: a probe must find w where the program put it, when it put it there."""

import pytest
import torch

from emulon.algorithms import LeastSquares, OnlineSGD
from emulon.core.errors import BadShape
from emulon.core.predictor import NotAPredictor
from emulon.identification import HiddenStates, hidden_states, linear_probe, moments, prefix_weights
from emulon.identification.probes import held_out_score
from emulon.machine.programs import batch_gradient_descent, sgd
from emulon.tasks import Linear

STEP, FEATURES, SAMPLES = 0.05, 3, 6


@pytest.fixture(scope="module")
def machine():
    return sgd(FEATURES, SAMPLES, STEP).compile()


@pytest.fixture(scope="module")
def data():
    return Linear(FEATURES).held_out(0, 1024, SAMPLES).pairs


@pytest.fixture(scope="module")
def hidden(machine, data):
    return hidden_states(machine, *data)


def written(machine, examples: int) -> int:
    """The layer after which the w of so many examples is at the tokens of the next: the round's write of w."""
    writes = [number for number, layer in enumerate(machine.layers, 1) for one in layer.adds if one.target.name == "w"]
    return writes[examples - 1]


@pytest.mark.parametrize("examples", [1, 3, 5])
def test_w_is_found_in_its_register_from_the_layer_that_writes_it_on(machine, data, hidden, examples: int):
    target = prefix_weights(OnlineSGD(STEP), *data)[:, examples]
    token, layer = f"x{examples + 1}", written(machine, examples)
    registers = {name: linear_probe(hidden.of(name), target) for name in hidden.registers}
    assert registers["w"].first_layer(token) == layer
    for n, (score, control) in enumerate(registers["w"].at(token)):
        assert score > 0.99 if n >= layer else score < 0.95
        # Before anything was written it is as for the control; between, the register holds fewer steps.
        assert abs(control) < 0.1 and (n >= written(machine, 1) or abs(score - control) < 0.1)
    place = hidden.tokens.index(token)
    assert max(one.score[:, place].max().item() for name, one in registers.items() if name != "w") < 0.5


def test_the_whole_stream_tells_layer_and_position_too(machine, data, hidden):
    target = prefix_weights(OnlineSGD(STEP), *data)[:, 1]
    scores = linear_probe(hidden, target)
    assert scores.first_layer("x2") == scores.first_layer("y2") == written(machine, 1)
    assert scores.first_layer("y1") == written(machine, 1) - 1  # its gradient, −w/step_size, is computed there
    assert scores.first_layer("x1") is None and scores.first_layer("start") is None
    assert scores.control.abs().max() < 0.15


def test_the_moment_is_found_where_one_step_of_batch_descent_collects_it(data):
    """One step from zero is step_size·Xᵀy/n: the machine averages y·x over the past examples and nothing else."""
    machine = batch_gradient_descent(FEATURES, SAMPLES, STEP, 1).compile()
    hidden = hidden_states(machine, *data)
    adds = ([one.target.name for one in layer.instructions] for layer in machine.layers)
    collects = next(number for number, names in enumerate(adds, 1) if "w" in names)
    scores = linear_probe(hidden.of("w"), moments(*data)[:, 4])
    assert scores.first_layer("x5") == collects
    assert all(abs(score - control) < 0.1 for score, control in scores.at("x5")[:collects])
    assert linear_probe(hidden, prefix_weights(LeastSquares(), *data)[:, 4]).score.max() < 0.9


def test_a_learner_shows_its_states_itself(data):
    class Learner:
        def hidden_states(self, xs, ys):
            return torch.stack([torch.zeros_like(xs), xs]).repeat_interleave(2, dim=2)[:, :, :-1]

    hidden = hidden_states(Learner(), *data)
    assert hidden.tokens == ("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4", "x5", "y5", "x6")
    scores = linear_probe(hidden, data[0][:, 2])
    assert scores.first_layer("x3") == 1 and scores.first_layer("x2") is None


def test_what_cannot_be_probed_is_refused(data, hidden):
    with pytest.raises(NotAPredictor, match="looked into"):
        hidden_states(LeastSquares(), *data)
    with pytest.raises(BadShape, match="4 or more"):
        linear_probe(HiddenStates(hidden.states[:, :3], hidden.tokens), data[0][:3, 0])


def test_a_probe_is_scored_on_datasets_that_it_was_not_fitted_to():
    generator = torch.Generator().manual_seed(0)
    states, target = (torch.randn(*size, generator=generator).double() for size in ((1, 80, 2, 30), (80, 2)))
    assert held_out_score(states, target).max() < 0.1
