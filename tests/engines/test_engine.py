"""Every engine of the table has what the executor uses."""

import pytest

from hetero_airflow.engines import ENGINES
from hetero_airflow.engines.engine import AirflowEngine
from hetero_airflow.registry import load


@pytest.mark.parametrize("name", list(ENGINES))
def test_it_can_be_made_without_a_side_effect(name):
    engine = load("hetero_airflow.engines", ENGINES, name)(8, None)
    assert isinstance(engine, AirflowEngine)
    assert engine.traits
