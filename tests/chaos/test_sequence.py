"""The same seed makes the same sequence, a file replays it, and its verdict counts what the promises forbid."""

import json
from collections import Counter

import pytest

from tests.chaos.sequence import (
    FAULTS,
    FLEET_ONLY,
    LOCAL_ONLY,
    POSTGRES_ONLY,
    WEIGHTS,
    WINDOW_S,
    random_sequence,
    read_sequence,
)
from tests.chaos.table import SequenceRow, Table, done_sequences
from tests.chaos.verdict import done_again, longest_wait_s, lost, retries_spent, unended

TASKS = {"whole": 3, "half": 2}


def a_sequence(seed=0, backend="postgres", schedulers=3, kinds=(), engine="local"):
    return random_sequence(seed, engine, backend, schedulers, TASKS, kinds)


def kinds_of(engine, backend):
    return {step.kind for seed in range(20) for step in a_sequence(seed, backend, engine=engine).steps}


def a_task(index=0, state="success", try_number=1):
    return {"task_id": "whole", "map_index": index, "state": state, "try_number": try_number}


def an_end(index=0, at=0.0):
    return {"event": "end", "task": ["whole", index, 1], "at": at}


def test_a_seed_makes_the_same_sequence_each_time_and_another_seed_another_one():
    assert a_sequence(0) == a_sequence(0)
    assert a_sequence(0).steps != a_sequence(1).steps


@pytest.mark.parametrize("seed", range(20))
def test_a_sequence_has_its_faults_in_order_and_a_plan_for_each_task(seed):
    sequence = a_sequence(seed)
    assert len(sequence.steps) == FAULTS
    assert [step.at_s for step in sequence.steps] == sorted(step.at_s for step in sequence.steps)
    assert all(0 <= step.at_s <= WINDOW_S and 0 <= step.pick < 1 and step.kind in WEIGHTS for step in sequence.steps)
    assert all(5 <= step.for_s <= 60 for step in sequence.steps if step.kind.startswith("freeze_"))
    assert all(10 <= step.for_s <= 200 for step in sequence.steps if step.kind == "api_server_away")
    assert {id_: len(plan) for id_, plan in sequence.plan.items()} == TASKS


@pytest.mark.parametrize(("engine", "excluded"), [("local", FLEET_ONLY), ("celery", LOCAL_ONLY), ("edge", LOCAL_ONLY)])
def test_twenty_sequences_have_every_kind_of_fault_that_the_engine_allows(engine, excluded):
    assert kinds_of(engine, "postgres") == set(WEIGHTS) - excluded


def test_sqlite_is_no_process_that_could_be_killed():
    assert kinds_of("local", "sqlite") == set(WEIGHTS) - POSTGRES_ONLY - FLEET_ONLY


def test_only_the_chosen_kinds_happen():
    assert {step.kind for step in a_sequence(kinds=["kill_task"]).steps} == {"kill_task"}


def test_a_file_replays_a_sequence_also_with_some_of_its_steps():
    sequence = a_sequence()
    text = sequence.to_json()
    assert read_sequence(text) == sequence
    value = json.loads(text)
    shorter = read_sequence(json.dumps({**value, "steps": value["steps"][3:5]}))
    assert (shorter.steps, shorter.plan) == (sequence.steps[3:5], sequence.plan)


def test_what_failed_or_did_nothing_is_lost_unless_a_person_marked_it():
    tasks = [a_task(0), a_task(1), a_task(2, "failed"), a_task(3, "failed"), a_task(4, "queued")]
    assert lost(tasks, [an_end(0)], {("whole", 3)}) == [
        "('whole', 1) is a success and has not done its work",
        "('whole', 2) ended as failed",
    ]
    assert unended(tasks) == ["whole[4] is queued"]


def test_tries_that_a_clear_asked_for_are_no_retries():
    tasks = [a_task(0), a_task(1, try_number=2), a_task(2, try_number=3)]
    assert retries_spent(tasks, Counter({("whole", 1): 1, ("whole", 2): 1})) == {("whole", 2): 1}


def test_work_that_was_done_once_more_is_counted_unless_a_clear_asked_for_it():
    journal = [an_end(0), an_end(0), an_end(0), an_end(1), an_end(1), an_end(2)]
    assert done_again(journal, Counter({("whole", 1): 1})) == 2


def test_the_longest_wait_is_between_two_signs_of_work():
    assert longest_wait_s([an_end(at=1), an_end(at=9), an_end(at=3)]) == 6
    assert longest_wait_s([]) == 0


def test_a_session_that_was_cut_off_goes_on_with_the_other_seeds(tmp_path):
    path = tmp_path / "table"
    assert done_sequences(path) == done_sequences(None) == set()
    Table(path).add(
        SequenceRow("postgres-3-7", 7, 3, 20, lost=0, doubles=0, shared_tokens=0, retries=0, not_ended=0, leases_left=0,
                    done_again=0, longest_wait_s=1.0, took_s=9.0)
    )  # fmt: skip
    assert done_sequences(path) == {"postgres-3-7"}
