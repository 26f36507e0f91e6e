import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.policies.core.linear_program import minimise


def test_rows_have_a_least_and_a_most() -> None:
    entries = np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([1.0, 1.0, 1.0])

    solution = minimise(np.array([1.0, 3.0]), entries, np.array([9.0, 2.0]), np.array([5.0, -np.inf]))

    assert solution is not None
    assert (solution.value, solution.columns.tolist()) == (11.0, [2.0, 3.0])


def test_an_infeasible_program_has_no_solution() -> None:
    entries = np.array([0]), np.array([0]), np.array([1.0])

    assert minimise(np.array([1.0]), entries, np.array([1.0]), np.array([2.0])) is None
    assert minimise(np.array([-1.0]), entries, np.array([np.inf])) is None


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=1, max_size=8), st.floats(0.1, 30))
def test_a_fractional_knapsack_is_filled_by_worth_of_weight(items: list[tuple[float, float]], capacity: float) -> None:
    worths, weight = np.array(items).T
    count = len(items)
    rows = np.concatenate([np.zeros(count, int), 1 + np.arange(count)])
    entries = rows, np.tile(np.arange(count), 2), np.concatenate([weight, np.ones(count)])

    solution = minimise(-worths, entries, np.concatenate([[capacity], np.ones(count)]))

    expected, remaining = 0.0, capacity
    for item in sorted(range(count), key=lambda i: -worths[i] / weight[i]):
        part = min(1.0, remaining / weight[item])
        expected, remaining = expected + part * worths[item], remaining - part * weight[item]
    assert solution is not None
    assert np.isclose(-solution.value, expected, rtol=1e-6, atol=1e-6)
