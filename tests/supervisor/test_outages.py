"""The supervisor of a device task in an outage of the API server: a real process, and an API that comes and goes."""

import os
import threading
from http import HTTPStatus
from types import SimpleNamespace

import httpx
import pytest
from airflow.sdk.api.client import Client
from airflow.sdk.execution_time.comms import SetXCom, SucceedTask

from hetero_airflow.supervisor import execution_api_calls
from hetero_airflow.supervisor.execution_api_calls import repeat_after_outages
from tests.supervisor.conftest import NOW, Api, waits_for

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class ComingAndGoing(Api):
    """The Execution API, which does not answer the given number of requests."""

    def __init__(self):
        super().__init__()
        self.unanswered = 0
        self.xcoms = []

    def answer(self, request):
        what = request.url.path.rpartition("/")[2]
        if self.unanswered > 0:
            self.unanswered -= 1
            raise httpx.ConnectError("Connection refused", request=request)
        if what == "health":
            return httpx.Response(200, json={"status": "healthy"})
        if "/xcoms/" in request.url.path:
            self.xcoms.append(request.read().decode())
            return httpx.Response(201, json={"message": "ok"})
        return super().answer(request)


@pytest.fixture
def api(monkeypatch):
    monkeypatch.setattr(execution_api_calls, "_ASK_EVERY_S", 0.001)
    monkeypatch.setattr(Client.request.retry, "sleep", lambda seconds: None)
    return ComingAndGoing()


@pytest.fixture
def start_waiting(start, tmp_path):
    """Starts a leased task whose process ends when it is told to, and makes it the given request."""

    def start_waiting(api, message, unanswered=100):
        process = start(waits_for(tmp_path / "over"))
        api.unanswered = unanswered
        process._handle_request(message, process.process_log, 1)
        (tmp_path / "over").touch()
        return process

    return start_waiting


def test_a_task_that_was_killed_in_an_outage_is_judged_after_it_and_uses_no_retry(start, api):
    process = start(lambda: os.kill(os.getpid(), 9))
    api.unanswered = 100
    process.wait()
    (end,) = api.reports
    assert '"up_for_reschedule"' in end
    (failure,) = api.states["hetero.failures"]
    assert failure["failure_class"] == "lost_worker"


def test_a_success_in_an_outage_is_reported_after_it(start_waiting, api):
    process = start_waiting(api, SucceedTask(end_date=NOW))
    assert process.wait() == 0
    assert ['"success"' in end for end in api.reports] == [True]
    assert process.final_state == "success"


def test_a_success_that_comes_after_another_run_has_taken_over_is_not_reported(start_waiting, api):
    api.heartbeat = HTTPStatus.CONFLICT
    process = start_waiting(api, SucceedTask(end_date=NOW))
    process.wait()
    assert api.reports == []


def test_a_call_of_the_task_is_answered_after_the_outage(start_waiting, api):
    push = SetXCom(key="k", value="42", dag_id="dag", run_id="run", task_id="t", map_index=-1)
    process = start_waiting(api, push)
    assert len(api.xcoms) == 1
    process.wait()


class TestRepeating:
    """`repeat_after_outages` itself."""

    @pytest.fixture
    def client(self, api):
        return Client(base_url=None, dry_run=True, token="", transport=httpx.MockTransport(api.answer))

    @pytest.fixture
    def log(self):
        texts = []
        return SimpleNamespace(texts=texts, warning=lambda text, **_: texts.append(text))

    def test_what_the_server_refuses_is_raised_at_once(self, client, log):
        calls = []

        def refused():
            calls.append(1)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            repeat_after_outages(refused, client, log)
        assert (len(calls), log.texts) == (1, [])

    def test_a_call_that_fails_although_the_server_answers_is_made_twice(self, client, log):
        """A request that always takes longer than the client's timeout must not hang its task."""
        calls = []

        def too_slow():
            calls.append(1)
            raise httpx.ReadTimeout("")

        with pytest.raises(httpx.ReadTimeout):
            repeat_after_outages(too_slow, client, log)
        assert (len(calls), log.texts) == (2, [])

    def test_an_outage_that_never_ends_is_given_up(self, api, client, log, monkeypatch):
        monkeypatch.setattr(execution_api_calls, "_LONGEST_OUTAGE_S", 0.05)
        api.unanswered = 1_000_000
        with pytest.raises(httpx.ConnectError):
            repeat_after_outages(lambda: client.get("xcoms"), client, log)
        assert len(log.texts) == 1

    def test_several_outages_are_waited_for_one_after_the_other(self, api, client, log):
        calls = []

        def cut_off():
            calls.append(1)
            if len(calls) <= 5:
                api.unanswered = 3
                raise httpx.RemoteProtocolError("")

        done = threading.Thread(target=repeat_after_outages, args=(cut_off, client, log))
        done.start()
        done.join(600)
        assert not done.is_alive()
        assert (len(calls), len(log.texts)) == (6, 5)
