from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.store.lease_rules import choose_cores

CORES = st.lists(st.integers(0, 40), unique=True, max_size=24)


@given(cores=CORES, taken=st.sets(st.integers(0, 40)), count=st.integers(0, 24))
def test_chosen_cores_are_free_and_span_as_little_as_any_choice(cores, taken, count):
    chosen = choose_cores(cores, taken, count)
    free = [position for position, core in enumerate(cores) if core not in taken]
    if chosen is None:
        assert len(free) < count
        return
    assert len(chosen) == len(set(chosen)) == count
    assert set(chosen) <= set(cores) - taken
    positions = [cores.index(core) for core in chosen]
    assert positions == sorted(positions)
    if count:
        least = min(free[start + count - 1] - free[start] for start in range(len(free) - count + 1))
        assert positions[-1] - positions[0] == least


def test_a_short_run_is_taken_before_a_long_one_is_cut():
    assert choose_cores(range(8), {2}, 2) == (0, 1)
    assert choose_cores(range(8), {4, 7}, 2) == (5, 6)


def test_a_run_within_one_numa_node_is_taken_before_one_that_spans_two():
    even_then_odd = (0, 2, 4, 6, 1, 3, 5, 7)
    assert choose_cores(even_then_odd, {0, 2, 4, 1}, 3) == (3, 5, 7)
