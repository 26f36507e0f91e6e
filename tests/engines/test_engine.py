"""Every engine of the table has all ports that the executor uses."""

import pytest

from hetero_airflow.engines import ENGINES
from hetero_airflow.engines.engine import AirflowEngine
from hetero_airflow.registry import load

PORTS = {
    name
    for port in AirflowEngine.__mro__
    if port.__module__ == AirflowEngine.__module__
    for name in (*vars(port), *port.__annotations__)
    if not name.startswith("_")
}


@pytest.mark.parametrize("name", list(ENGINES))
def test_it_has_all_ports(name):
    assert {"start", "prompt_ends", "cluster", "traits"} <= PORTS
    engine = load("hetero_airflow.engines", ENGINES, name)(8, None)
    assert [port for port in sorted(PORTS) if not hasattr(engine, port)] == []
