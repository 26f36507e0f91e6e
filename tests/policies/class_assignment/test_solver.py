import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from hetero_airflow.policies.class_assignment.solver import WAITING, Floats, Numbers, solve_assignment

Case = tuple[Floats, Numbers, Numbers, Numbers]


@st.composite
def cases(draw: st.DrawFn, sizes: tuple[int, ...], max_jobs: int) -> Case:
    """Values, sizes, capacities, and a start that fits."""
    jobs, classes = draw(st.integers(1, max_jobs)), draw(st.integers(1, 3))
    cell = st.one_of(st.integers(1, 1000).map(lambda n: n / 997), st.just(-math.inf))
    values = np.array([[draw(cell) for _ in range(classes)] for _ in range(jobs)])
    size = np.array([draw(st.sampled_from(sizes)) for _ in range(jobs)])
    capacities = np.array([draw(st.integers(0, 6)) for _ in range(classes)])
    start, free = np.full(jobs, WAITING), capacities.copy()
    for job in range(jobs):
        where = draw(st.integers(-1, classes - 1))
        if where != WAITING and values[job, where] > 0 and free[where] >= size[job]:
            start[job] = where
            free[where] -= size[job]
    return values, size, capacities, start


def total_value(values: Floats, where: Numbers) -> float:
    return sum(float(values[job, k]) for job, k in enumerate(where) if k != WAITING)


def is_fitting(case: Case, where: Numbers) -> bool:
    values, sizes, capacities, _ = case
    is_possible = all(k == WAITING or values[job, k] > 0 for job, k in enumerate(where))
    return is_possible and all(sizes[where == k].sum() <= capacity for k, capacity in enumerate(capacities))


@settings(max_examples=300, deadline=None)
@given(cases((1,), 12))
def test_single_devices_are_assigned_as_the_hungarian_method_would(case: Case) -> None:
    values, _, capacities, _ = case
    assigned = solve_assignment(*case)
    columns = np.repeat(np.arange(len(capacities)), capacities)
    gains = np.where(np.isfinite(values), values, -1.0)[:, columns]
    gains = np.hstack([gains, np.zeros((len(values), len(values)))])
    rows, chosen = linear_sum_assignment(-gains)
    assert is_fitting(case, assigned)
    assert total_value(values, assigned) == pytest.approx(gains[rows, chosen].sum())


@settings(max_examples=200, deadline=None)
@given(cases((1, 1, 2, 3), 5))
def test_several_devices_are_never_split_and_lose_less_than_the_best_job_is_worth(case: Case) -> None:
    values, _, capacities, _ = case
    assigned = solve_assignment(*case)
    options = (np.array(where) for where in product(range(-1, len(capacities)), repeat=len(values)))
    best = max(total_value(values, where) for where in options if is_fitting(case, where))
    assert is_fitting(case, assigned)
    assert total_value(values, assigned) >= best - max(0.0, values.max()) - 1e-9


@settings(max_examples=100, deadline=None)
@given(cases((1,), 10))
def test_the_best_assignment_stays_as_it_is(case: Case) -> None:
    values, sizes, capacities, _ = case
    best = solve_assignment(*case)
    assert solve_assignment(values, sizes, capacities, best).tolist() == best.tolist()


def test_comparative_advantage_counts_where_two_want_one_device() -> None:
    values = np.array([[1.0, 0.9], [0.9, 0.1]])
    ones = np.ones(2, np.int64)
    assert solve_assignment(values, ones, ones, np.array([0, WAITING])).tolist() == [1, 0]


def test_a_large_job_comes_in_where_it_is_worth_more_than_those_it_replaces() -> None:
    values, sizes = np.array([[3.0], [1.0], [1.0], [1.5]]), np.array([4, 2, 2, 1])
    start = np.array([WAITING, 0, 0, WAITING])
    assert solve_assignment(values, sizes, np.array([5]), start).tolist() == [0, WAITING, WAITING, 0]
    assert solve_assignment(values, sizes, np.array([4]), start).tolist() == [0, WAITING, WAITING, WAITING]


@pytest.mark.timeout(20)
def test_rounding_errors_of_huge_values_cause_no_endless_exchange() -> None:
    """Found by chance: an exchange and its reverse both seemed to gain, and alternated for ever."""
    kinds = np.array(
        [
            [2176410973347.8745, 2233285119002.0483],
            [6551249230.906819, 8256909419.813566],
            [2065335429853.2498, 2205868470135.379],
        ]
    )
    values = kinds[[0, 0, 1, 1, 2, 1, 0, 0, 2, 1, 0, 0, 2, 2, 2, 2]]
    sizes = np.array([1, 1, 4, 4, 1, 4, 1, 1, 1, 4, 1, 1, 1, 1, 1, 1])
    arguments = sizes, np.array([9, 9]), np.full(16, WAITING)
    assert solve_assignment(values, *arguments).tolist() == solve_assignment(values / 1e12, *arguments).tolist()


def test_without_jobs_nothing_is_assigned() -> None:
    assert (
        solve_assignment(np.empty((0, 2)), np.empty(0, np.int64), np.array([1, 1]), np.empty(0, np.int64)).tolist()
        == []
    )
