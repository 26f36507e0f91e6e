import math
from datetime import timedelta

import pytest

from hetero_airflow.errors import RequestError
from hetero_airflow.runtime.save_interval import SaveInterval


@pytest.mark.parametrize(
    "value", ["0s", 0, -1, "-5m", math.nan, math.inf, True, False, 2.5, None, "", "soon", timedelta(0), 10**12, "400d"]
)
def test_what_is_no_interval_is_refused_with_its_field(value) -> None:
    with pytest.raises(RequestError) as caught:
        SaveInterval.parse(value)
    assert caught.value.field == "every"
    assert caught.value.remedy


def test_steps_are_counted_from_the_first_of_the_task_not_of_the_run() -> None:
    every = SaveInterval.parse(3)
    assert [step for step in range(10) if every.is_due(step, since_s=math.inf)] == [2, 5, 8]


def test_time_counts_from_the_last_save() -> None:
    every = SaveInterval.parse(timedelta(seconds=90))
    assert [every.is_due(7, since_s=seconds) for seconds in (0, 89.9, 90, 1000)] == [False, False, True, True]
