"""The names that commands check before torch is imported are those of the registries."""

import dataclasses

import pytest

from emulon.algorithms import ALGORITHMS
from emulon.cli.names import fields_of, registered, require_known
from emulon.cli.options import BadUsage
from emulon.models import Learner
from emulon.tasks import TASKS
from emulon.training import TrainConfig


def test_the_names_read_from_the_sources_are_the_registered_ones():
    assert registered("algorithms") == set(ALGORITHMS)
    assert registered("models") <= set(Learner.registry)
    assert registered("tasks") <= set(TASKS)


def test_an_unknown_name_is_answered_with_the_nearest():
    require_known("model", "looped", "models")
    with pytest.raises(BadUsage, match="there is no model 'loped'; did you mean looped"):
        require_known("model", "loped", "models")


def test_the_fields_read_from_the_source_are_the_dataclasses():
    assert fields_of("training.configuration", "TrainConfig") == [
        field.name for field in dataclasses.fields(TrainConfig)
    ]
