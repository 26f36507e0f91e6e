from dataclasses import replace

import pytest

from hetero_airflow.errors import InvalidTransition
from hetero_airflow.model.lease import TERMINAL, TRANSITIONS, LeaseState, check_transition
from hetero_airflow.model.plan import TRANSIENT, Plan, Reason, ReasonCode
from hetero_airflow.testing import EPOCH, a_place


@pytest.mark.parametrize("current", LeaseState)
@pytest.mark.parametrize("to", LeaseState)
def test_only_transitions_of_the_table_are_allowed(current: LeaseState, to: LeaseState) -> None:
    if (current, to) in TRANSITIONS:
        check_transition("l1", current, to)
    else:
        with pytest.raises(InvalidTransition, match=f"change lease l1 to {to}; found that it is {current}"):
            check_transition("l1", current, to)


def test_a_terminal_state_never_changes_and_every_other_state_can_end() -> None:
    assert not {a for a, _ in TRANSITIONS} & TERMINAL
    assert {a for a, b in TRANSITIONS if b in TERMINAL} == set(LeaseState) - TERMINAL


def test_the_error_shows_the_allowed_transitions() -> None:
    with pytest.raises(InvalidTransition) as caught:
        check_transition("l1", LeaseState.ACTIVE, LeaseState.GRANTED)
    assert caught.value.remedy == "From there it may become evicted, expired, preempted, released"


def test_a_transient_reason_can_end_by_itself() -> None:
    curable = {code for code in ReasonCode if Reason(code, "a", "b").is_transient}
    assert curable == TRANSIENT
    of_the_hardware = {"kind", "model", "partition", "memory", "driver", "runtime", "labels"}
    assert set(ReasonCode) - TRANSIENT == of_the_hardware | {"count", "cpus", "host_memory", "topology", "paused"}


def test_a_reason_shows_both_sides_and_its_end() -> None:
    busy = Reason(ReasonCode.BUSY, "2 × gpu", "1 free")
    assert str(busy) == "busy: asked 2 × gpu, found 1 free"
    ends = replace(busy, until=EPOCH, then="the task fails")
    assert str(ends) == "busy: asked 2 × gpu, found 1 free; after 2026-01-01 00:00:00 UTC the task fails"


def test_a_plan_knows_its_placements() -> None:
    place = a_place("r1", **{"GPU-0": 1000})
    assert Plan((place,)).places == (place,)
    assert Plan().places == ()
