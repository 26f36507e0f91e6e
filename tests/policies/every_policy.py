"""Every policy that keeps the contract: the rows of `POLICIES`, and those that only the benchmarks use."""

from collections.abc import Callable
from functools import partial

import pytest

from hetero_airflow.policies import POLICIES, load_policy
from hetero_airflow.policies.policy import Policy
from tests.benchmarks.makespan_lp import MakespanLp

EVERY_POLICY: dict[str, Callable[[], Policy]] = {
    **{name: partial(load_policy, name) for name in POLICIES},
    "makespan_lp": MakespanLp,
}
rows = pytest.mark.parametrize("name", EVERY_POLICY)
"""Runs a test for each of them."""


def make(name: str) -> Policy:
    """A new policy of that name."""
    return EVERY_POLICY[name]()
