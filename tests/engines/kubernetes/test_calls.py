import threading
import time

import pytest
from kubernetes.client import ApiException

from hetero_airflow.engines.kubernetes.calls import ClusterCalls, next_delay_s
from hetero_airflow.engines.kubernetes.outage import Outage
from hetero_airflow.engines.kubernetes.queued_api import QueuedApi
from hetero_airflow.engines.kubernetes.watch.leased_pods import read_pod
from tests.engines.kubernetes.fake_api import SIGNER, a_pod, connect
from tests.waiting import eventually


@pytest.fixture
def calls(api):
    calls = ClusterCalls(lambda: connect(api), Outage("the cluster eu"), delay_s=0.02)
    calls.start()
    yield calls
    calls.stop()


@pytest.fixture
def queued(api, calls):
    return QueuedApi(calls, lambda: connect(api))


def made(api, name="p"):
    return read_pod(api.put("pods", a_pod(name, "gpu-1", lease="l")), SIGNER)


def test_a_pod_gets_one_delete_for_each_grace_time(api, queued):
    pod = made(api)
    for grace_s in (None, None, 1, 1):
        queued.delete(pod, grace_s)
    queued.delete(made(api, "last"))
    eventually(lambda: api.deletions == [("p", None), ("p", 1), ("last", None)])
    queued.delete(pod)
    queued.delete(made(api, "end"))
    eventually(lambda: api.deletions[3:] == [("end", None)])


def test_another_pod_of_the_name_is_spared(api, queued):
    pod = made(api)
    api.drop("pods", "p", "default")
    made(api)
    queued.delete(pod)
    queued.delete(made(api, "last"))
    eventually(lambda: api.deletions == [("last", None)])
    assert len(api.pods()) == 2


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_a_delete_that_fails_is_repeated_until_it_is_answered(api, queued, status):
    pod = made(api)
    api.status = status
    queued.delete(pod)
    eventually(lambda: len(api.requests) >= 3)
    api.status = None
    eventually(lambda: api.deletions == [("p", None)])


def test_a_call_that_is_made_once_fails_in_an_outage_with_those_behind_it(api, calls):
    answers = []
    api.status = 503
    hold = threading.Event()
    calls.put("first", lambda client: hold.wait() and client.list_node(), answers.append)
    calls.put("second", lambda client: client.list_node(), answers.append)
    hold.set()
    eventually(lambda: calls.handle_answers() or len(answers) == 2)
    assert {answer.status for answer in answers} == {503}
    api.status = None
    eventually(lambda: calls.problem is None)
    assert "/api/v1/nodes" in {path for _, path, _ in api.requests}
    assert sum(path == "/api/v1/nodes" for _, path, _ in api.requests) == 1, "it was made once"


def test_one_object_that_fails_always_stops_no_other(api, calls, queued, caplog):
    """A webhook of somebody that is broken, for example."""

    def fail(client):
        raise ApiException(500, "Internal error: failed calling webhook")

    calls.put("odd", fail, is_repeated=True)
    for name in "abc":
        queued.delete(made(api, name))
    eventually(lambda: [name for name, _ in api.deletions] == list("abc"))
    assert calls.problem is None
    assert "does not answer" not in caplog.text


@pytest.mark.parametrize("status", [429, 500])
def test_a_call_that_the_cluster_delays_waits_alone_and_as_long_as_it_is_asked_to(api, calls, queued, status):
    asked_at = []

    def fail(client):
        asked_at.append(time.monotonic())
        answer = ApiException(status, "Odd")
        answer.headers = {"Retry-After": "1"}
        raise answer

    calls.put("odd", fail, is_repeated=True)
    for name in "abc":
        queued.delete(made(api, name))
    eventually(lambda: len(api.deletions) == 3)
    assert (len(asked_at), calls.problem) == (1, None)
    eventually(lambda: len(asked_at) == 2)
    assert asked_at[1] - asked_at[0] >= 1


@pytest.mark.parametrize(
    ("header", "delay_s"), [("3", 3.0), ("0", 1.0), ("-1", 1.0), ("1e9", 1.0), ("²", 1.0), ("9" * 400, 300.0)]
)
def test_a_time_that_makes_no_sense_is_not_waited_for(header, delay_s):
    answer = ApiException(429, "Too Many Requests")
    answer.headers = {"Retry-After": header}
    assert next_delay_s(answer, 0.0) == delay_s


def test_a_server_that_shuts_down_is_left_alone_for_the_time_it_asks_for(api, calls):
    answer = ApiException(503, "Service Unavailable")
    answer.headers = {"Retry-After": "1"}
    asked_at = []

    def fail(client):
        asked_at.append(time.monotonic())
        raise answer

    calls.put("first", fail)
    eventually(lambda: any(path == "/version/" for _, path, _ in api.requests))
    assert time.monotonic() - asked_at[0] >= 1


def test_a_call_is_answered_in_the_loop_and_waits_once_for_each_key(api, calls):
    answers = []
    hold = threading.Event()
    calls.put("hold", lambda client: hold.wait())
    for number in range(3):
        calls.put("same", lambda client, number=number: (number, threading.current_thread()), answers.append)
    hold.set()
    eventually(lambda: calls.handle_answers() or answers)
    assert answers == [(0, calls._thread)]


def test_an_outage_is_two_lines_of_log(api, calls, queued, caplog):
    api.status = 503
    for name in "abc":
        queued.delete(made(api, name))
    eventually(lambda: len(api.requests) >= 5)
    api.status = None
    eventually(lambda: len(api.deletions) == 3)
    first, last = (record.getMessage() for record in caplog.records)
    assert (
        first
        == "The cluster eu does not answer (calls: 503 Service Unavailable). Its tasks wait, and running ones go on."
    )
    assert last.startswith("The cluster eu answers again, after ")


def test_a_server_that_is_away_or_refuses_the_client_is_tried_again(api, calls, queued):
    host, api.host = api.host, "http://127.0.0.1:9"
    pod = made(api)
    queued.delete(pod)
    eventually(lambda: calls.problem and "refused" in calls.problem)
    api.host = host
    eventually(lambda: api.deletions == [("p", None)])


def test_what_is_refused_is_said_and_not_repeated(api, calls, caplog):
    def refuse(client):
        raise ApiException(403, "Forbidden")

    calls.put("odd", refuse, is_repeated=True)
    eventually(lambda: "A cluster refused a call: 403 Forbidden" in caplog.text)
    assert calls.problem is None


def test_a_cluster_that_answers_a_probe_with_an_error_is_tried_again(api, calls, queued):
    pod = made(api)
    api.status = 503
    queued.delete(pod)
    eventually(lambda: calls.problem)
    api.status = 500
    eventually(lambda: calls.problem and calls.problem.startswith("500"))
    api.status = None
    eventually(lambda: api.deletions == [("p", None)])


def test_an_answer_that_cannot_be_handled_stops_no_other(calls, caplog):
    answers = []
    calls.put("odd", lambda client: 1, lambda answer: answer.missing)
    calls.put("next", lambda client: 2, answers.append)
    eventually(lambda: calls.handle_answers() or answers == [2])
    assert "can't be handled" in caplog.text


def test_a_fault_does_not_end_the_thread(calls, monkeypatch, caplog):
    answers = []
    with monkeypatch.context() as patch:
        patch.setattr(calls, "_note_answer", None)
        calls.put("next", lambda client: 2, answers.append)
        eventually(lambda: "have a fault" in caplog.text)
    eventually(lambda: calls.handle_answers() or answers == [2])
    assert caplog.text.count("have a fault") == 1
