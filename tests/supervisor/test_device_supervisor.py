"""What the supervisor of a device task tells Airflow of its end: real processes, and the Execution API by hand."""

import json
import os
import time
from http import HTTPStatus

import airflow.sdk.execution_time.supervisor
import pytest
from airflow.sdk.execution_time.comms import RescheduleTask, TaskState
from airflow.sdk.execution_time.supervisor import SERVER_TERMINATED

from hetero_airflow.supervisor.run_processes import contained_run
from hetero_airflow.testing import a_task_lease
from tests.supervisor.conftest import NOW, waits_for

# Airflow's supervisor leaves it to the end of its process to close its sockets
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def dies():
    os._exit(1)


def closes_its_sockets_and_exits_later():
    os.closerange(0, 256)
    time.sleep(0.5)
    os._exit(1)


def test_the_end_of_a_process_is_seen_at_once_and_not_at_the_next_heartbeat(start, monkeypatch):
    monkeypatch.setattr(airflow.sdk.execution_time.supervisor, "MIN_HEARTBEAT_INTERVAL", 3600)
    assert start(closes_its_sockets_and_exits_later).wait() == 1


def test_the_task_whose_process_dies_is_said_to_have_failed(start, api):
    process = start(dies)
    assert process.wait() == 1
    (report,) = api.reports
    assert '"failed"' in report


def test_the_end_of_a_task_is_reported_at_once_although_a_daemon_of_it_keeps_its_sockets_open(start, api, monkeypatch):
    """Airflow alone waits for the sockets until `socket_cleanup_timeout`."""
    monkeypatch.setattr(airflow.sdk.execution_time.supervisor, "SOCKET_CLEANUP_TIMEOUT", 3600)

    def leaves_a_daemon():
        if os.fork() == 0:
            os.setsid()
            time.sleep(3600)
        os._exit(1)

    with contained_run(a_task_lease(simulated=True), None):
        assert start(leaves_a_daemon).wait() == 1
    assert len(api.reports) == 1


@pytest.mark.parametrize("status", [HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE])
def test_one_that_another_run_has_overtaken_dies_without_a_word(start, api, status):
    api.heartbeat = status
    process = start(dies)
    assert process.wait() == 1
    assert (api.reports, process.final_state) == ([], SERVER_TERMINATED)


@pytest.mark.parametrize("status", [HTTPStatus.CONFLICT, HTTPStatus.NO_CONTENT])
def test_what_the_task_says_itself_is_passed_on_only_while_it_is_the_tasks_process(start, api, status, tmp_path):
    process = start(waits_for(tmp_path / "over"))
    api.heartbeat = status
    process._send_terminal_state_msg(RescheduleTask(reschedule_date=NOW, end_date=NOW))
    (tmp_path / "over").touch()
    assert process.wait() == 0
    is_current = status == HTTPStatus.NO_CONTENT
    assert [("up_for_reschedule" in report) for report in api.reports] == [True] * is_current
    assert process.final_state == ("up_for_reschedule" if is_current else SERVER_TERMINATED)


def test_a_failure_that_the_task_says_is_kept_back_too(start, api, tmp_path):
    process = start(waits_for(tmp_path / "over"))
    api.heartbeat = HTTPStatus.CONFLICT
    process._handle_request(TaskState(state="failed", end_date=NOW), process.process_log, 1)
    (tmp_path / "over").touch()
    process.wait()
    assert (api.reports, process.final_state) == ([], SERVER_TERMINATED)


def test_where_airflow_can_not_be_asked_it_is_told_as_ever(start, api):
    api.heartbeat = HTTPStatus.FORBIDDEN
    process = start(dies)
    process.wait()
    assert len(api.reports) == 1


@pytest.mark.parametrize(
    ("rule", "state"),
    [({}, "up_for_reschedule"), ({"hung": {"action": "fail"}}, "failed"), ({"hung": {"action": "retry"}}, "failed")],
)
def test_whether_a_task_that_hung_goes_on_is_for_the_rules_to_say(start, api, monkeypatch, rule, state):
    monkeypatch.setenv("AIRFLOW__HETERO__RECOVERY_RULES", json.dumps(rule))
    process = start(lambda: None)
    process._monitor.hung_s = 900.0
    process._send_terminal_state_msg(RescheduleTask(reschedule_date=NOW, end_date=NOW))
    assert api.reports == []
    assert process.wait() == 0
    (end,) = api.reports
    assert f'"{state}"' in end
    (failure,) = api.states["hetero.failures"]
    assert failure["failure_class"] == "hung"


def test_one_that_hung_and_had_to_be_killed_goes_on_too(start, api):
    process = start(dies)
    process._monitor.hung_s = 900.0
    process.wait()
    (end,) = api.reports
    assert '"up_for_reschedule"' in end
