"""The long form of the model test of a lease's life: new random sequences with each run.

A failure prints the shortest sequence that was found, and a decorator that replays it.
"""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.executor.leases.lease_life import LeaseLife


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_whatever_happens_each_run_has_its_own_lease_and_no_other_run_is_stopped():
    limits = settings(max_examples=2000, stateful_step_count=60, deadline=None, print_blob=True)
    run_state_machine_as_test(LeaseLife, settings=limits)
