import math
from datetime import timedelta

import pytest

from hetero_airflow.checkpoints.index import Index
from hetero_airflow.errors import RequestError
from hetero_airflow.sensors.checkpoint_condition import CheckpointCondition
from tests.checkpoints.conftest import NOW
from tests.checkpoints.test_retention import entry

ENTRIES = (
    entry(10, accuracy=0.95, age_s=300),
    entry(20, accuracy=0.5, loss=2.0, age_s=200),
    entry(30, loss=1.0, age_s=100, is_final=True),
)


@pytest.mark.parametrize(
    ("given", "step"),
    [
        ({"step": 0}, 30),
        ({"step": 30}, 30),
        ({"step": 31}, None),
        ({"metric": "accuracy", "above": 0.4}, 20),
        ({"metric": "accuracy", "above": 0.5}, 10),
        ({"metric": "accuracy", "above": 0.95}, None),
        ({"metric": "loss", "below": 2.0}, 30),
        ({"metric": "loss", "above": 1.0, "below": 3}, 20),
        ({"metric": "perplexity", "below": 3}, None),
        ({"metric": "accuracy", "above": 0.9, "step": 20}, None),
        ({"younger_than": "2m"}, 30),
        ({"younger_than": timedelta(seconds=100)}, None),
        ({"metric": "accuracy", "above": 0.4, "younger_than": 201}, 20),
        ({"complete": True}, 30),
        ({"complete": True, "metric": "accuracy", "above": 0}, None),
    ],
)
def test_the_newest_that_meets_all_of_it_is_found(given, step):
    checkpoint = CheckpointCondition.parse(**given).met_in(Index(token=1, epoch=0, entries=ENTRIES), NOW)
    assert (checkpoint and checkpoint.step) == step


def test_checkpoints_of_before_the_clear_do_not_count():
    index = Index(token=2, epoch=1, entries=(entry(10, epoch=0), entry(3, epoch=1)))
    assert CheckpointCondition.parse(step=0).met_in(index, NOW).step == 3
    assert CheckpointCondition.parse(step=4).met_in(index, NOW) is None


@pytest.mark.parametrize(
    ("given", "field", "phrase"),
    [
        ({}, "step", "nothing to wait for"),
        ({"complete": False}, "step", "nothing to wait for"),
        ({"step": -1}, "step", "no step number"),
        ({"step": True}, "step", "no step number"),
        ({"step": "100"}, "step", "no step number"),
        ({"step": 1.5}, "step", "no step number"),
        ({"metric": "loss", "below": math.nan}, "below", "no finite number"),
        ({"metric": "loss", "above": math.inf}, "above", "no finite number"),
        ({"metric": "loss", "above": "1"}, "above", "no finite number"),
        ({"metric": "loss", "above": True}, "above", "no finite number"),
        ({"metric": "loss", "above": 2, "below": 1}, "above", "no value is in between"),
        ({"metric": "loss", "above": 1, "below": 1}, "above", "no value is in between"),
        ({"metric": "loss"}, "metric", "no bound"),
        ({"above": 1}, "metric", "above without a metric"),
        ({"metric": 5, "above": 1}, "metric", "above without a metric"),
        ({"younger_than": "0s"}, "younger_than", "0 s"),
        ({"younger_than": math.nan}, "younger_than", "not above 0 s"),
        ({"younger_than": "soon"}, "younger_than", "no duration"),
        ({"complete": "yes"}, "complete", "neither True nor False"),
    ],
)
def test_a_condition_that_can_never_be_met_is_refused(given, field, phrase):
    with pytest.raises(RequestError) as caught:
        CheckpointCondition.parse(**given)
    assert caught.value.field == field
    assert phrase in caught.value.found
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"step": 5, "metric": "loss", "above": 1, "below": 2.5}, "step >= 5, loss > 1, loss < 2.5"),
        ({"younger_than": "1m", "complete": True}, "younger than 60 s, complete"),
    ],
)
def test_it_travels_as_plain_values_and_reads_as_words(given, text):
    condition = CheckpointCondition.parse(**given)
    assert CheckpointCondition(**condition.to_json()) == condition
    assert str(condition) == text
