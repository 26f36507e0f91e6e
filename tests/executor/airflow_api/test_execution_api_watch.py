import threading
from datetime import timedelta

import pytest

from hetero_airflow.executor.airflow_api.execution_api_watch import ExecutionApiWatch
from hetero_airflow.model.heartbeat import ServerHeartbeat
from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.testing import EPOCH, FakeClock

REFUSED = "ConnectError: Connection refused"


def a_watch(*problems, is_expected=True):
    """A watch whose requests meet these problems, one after the other."""
    found, clock = list(problems), FakeClock()
    watch = ExecutionApiWatch(lambda: found.pop(0), clock, lambda: is_expected)
    for _ in problems:
        clock.advance(2)
        watch.ask()
    return watch


def test_nothing_is_placed_before_the_server_was_asked():
    assert str(a_watch().placement_obstacle()).endswith(
        "found no answer since 2026-01-01 00:00:00 UTC (the scheduler has just started)"
    )


def test_a_scheduler_that_starts_during_an_outage_knows_of_it_until_the_first_answer():
    watch = a_watch(REFUSED, REFUSED)
    assert str(watch.placement_obstacle()).endswith(f"found no answer since 2026-01-01 00:00:00 UTC ({REFUSED})")
    assert watch.has_failed_since(EPOCH)
    assert a_watch(REFUSED, None).placement_obstacle() is None


def test_an_address_that_only_workers_reach_is_no_obstacle():
    watch = a_watch(*[REFUSED] * 5, is_expected=False)
    assert (watch.outage, watch.placement_obstacle(), watch.has_failed_since(EPOCH)) == (None, None, False)


@pytest.mark.parametrize(
    ("is_local", "heartbeat_age_s", "is_away"),
    [(True, None, True), (True, 1, True), (False, None, False), (False, 1, False), (False, 60, True)],
)
def test_what_the_silence_of_an_address_means_that_never_answered(is_local, heartbeat_age_s, is_away):
    """Local tasks use the same address. Elsewhere, the last heartbeat of a server with this plugin tells."""
    clock = FakeClock()
    at = None if heartbeat_age_s is None else clock.now() - timedelta(seconds=heartbeat_age_s)
    heartbeat = None if at is None else ServerHeartbeat(at, at)
    watch = ExecutionApiWatch.of_server(
        "http://127.0.0.1:9/execution/", clock, is_local=is_local, last_heartbeat=lambda: heartbeat
    )
    watch.ask()
    assert (watch.outage is not None) is is_away


def test_a_server_that_answers_is_no_obstacle():
    assert a_watch(REFUSED, None, None).placement_obstacle() is None


def test_one_failed_request_is_no_outage_and_two_are():
    assert a_watch(None, REFUSED).placement_obstacle() is None
    reason = a_watch(None, REFUSED, "ReadTimeout: timed out").placement_obstacle()
    assert reason.code is ReasonCode.API_SERVER
    assert reason.is_transient
    assert str(reason) == (
        "api_server: asked an answer of Airflow's API server, "
        f"found no answer since 2026-01-01 00:00:04 UTC ({REFUSED})"
    )


def test_the_reason_stays_the_same_during_an_outage_so_that_nothing_is_decided_again():
    first, later = (a_watch(None, *[REFUSED] * count) for count in (2, 20))
    assert first.placement_obstacle() == later.placement_obstacle()


def test_the_first_answer_ends_an_outage_which_is_remembered():
    watch = a_watch(None, REFUSED, REFUSED, None)
    assert watch.outage is None
    assert watch.has_failed_since(EPOCH + timedelta(seconds=6))
    assert not watch.has_failed_since(EPOCH + timedelta(seconds=7))


def test_a_client_that_can_not_be_made_is_no_answer_either():
    def fail():
        raise OSError("no such certificate")

    watch = ExecutionApiWatch(fail, FakeClock())
    watch.ask()
    assert watch.outage.problem == "OSError: no such certificate"


def test_an_outage_and_its_end_are_logged_once(caplog):
    caplog.set_level("INFO")
    a_watch(None, *[REFUSED] * 5, None, None)
    assert [record.getMessage() for record in caplog.records] == [
        f"Airflow's API server does not answer: {REFUSED}. No task starts until it does. Running ones go on.",
        "Airflow's API server answers again. Tasks start again.",
    ]


def test_it_asks_in_a_thread_until_it_is_closed():
    asked, go_on = threading.Event(), threading.Event()

    def find_problem():
        asked.set()
        go_on.wait(600)

    watch = ExecutionApiWatch(find_problem, FakeClock())
    watch.start()
    assert asked.wait(600)
    assert watch.placement_obstacle() is not None, "an answer is not waited for"
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "execution-api-watch"]
    watch.close()
    go_on.set()
    thread.join(600)
    assert not thread.is_alive()
