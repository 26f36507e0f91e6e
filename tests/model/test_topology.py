from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.model.topology import Level, Topology
from hetero_airflow.units import MAX_DURATION_S

LEVELS = st.sampled_from([level for level in Level if level is not Level.ANYWHERE])
BUDGETS = st.none() | st.integers(1, 10**6).map(float) | st.integers(1, 10**6).map(lambda ms: ms / 1000)


@given(LEVELS, BUDGETS)
def test_a_topology_is_read_as_it_is_written(level: Level, budget_s: float | None) -> None:
    topology = Topology(level, budget_s)
    assert Topology.parse(str(topology)) == topology


def test_the_longest_wait_budget_is_the_longest_duration() -> None:
    assert Topology.parse("host@366d").budget_s == MAX_DURATION_S


def test_levels_rank_from_the_nearest() -> None:
    assert [level.rank for level in Level] == [0, 1, 2, 3, 4, 5]
    assert [level for level in Level if level.is_within_worker] == [Level.NVLINK, Level.NUMA]
