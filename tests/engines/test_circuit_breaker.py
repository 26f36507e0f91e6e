import socket
import threading
import time

import pytest

from hetero_airflow.engines.circuit_breaker import PAUSE_S, CircuitBreaker, ServiceCalls
from tests.silent_server import silent_server
from tests.waiting import PATIENCE_S, eventually


def test_a_failure_is_followed_by_a_pause_and_an_answer_ends_it(caplog):
    clock = [100.0]
    breaker = CircuitBreaker("The broker", "Tasks wait.", lambda: clock[0])
    assert not breaker.is_open
    for _ in range(2):
        breaker.note_failure(TimeoutError("3 s"))
        assert breaker.is_open
        clock[0] += PAUSE_S
        assert not breaker.is_open, "it is time to try again"
    assert caplog.text.count("The broker does not answer: TimeoutError: 3 s. Tasks wait.") == 1
    breaker.note_failure(OSError("refused"))
    breaker.note_answer()
    assert not breaker.is_open
    breaker.note_failure(TimeoutError("3 s"))
    assert caplog.text.count("TimeoutError") == 2, "an error after an answer is logged again"


class Service:
    """Answers a call when it is told to."""

    def __init__(self):
        self.seconds, self.made, self.gates = 0.0, [], {}
        self.calls = ServiceCalls("The backend", "Tasks go on.", 3, (ConnectionError,), lambda: self.seconds)

    def make(self, name):
        """A call that waits for its gate, if it has one."""

        def call():
            self.made.append(name)
            if name in self.gates:
                self.gates[name].wait(PATIENCE_S)
            return name

        return call

    def ask(self, name):
        return self.calls.ask(name, self.make(name))

    def keep(self, name):
        self.calls.keep(name, self.make(name), f"{name} is lost")

    def block(self, name):
        """A call that is not answered in time; its gate."""
        gate = self.gates[name] = threading.Event()
        asked = self.ask(name)
        eventually(lambda: name in self.made)
        self.seconds += 3
        self.calls.go_on()
        assert isinstance(asked.exception(), TimeoutError)
        return gate


@pytest.fixture
def service():
    service = Service()
    yield service
    for gate in service.gates.values():
        gate.set()


def test_what_is_asked_is_answered_once_and_then_asked_anew(service):
    for _ in range(2):
        assert eventually(lambda: (answer := service.ask("a")).done() and answer).result() == "a"
    assert service.made == ["a", "a"]
    service.calls.ask("b", lambda: 1 / 0, patience_s=PATIENCE_S)
    assert service.calls.ask("c", lambda: 7, patience_s=PATIENCE_S).result() == 7, "that was an answer too"


def test_while_a_service_is_silent_what_is_asked_fails_and_what_is_kept_waits_in_its_order(service, caplog):
    service.block("a")
    assert isinstance(service.ask("b").exception(), TimeoutError)
    for name in "cdc":
        service.keep(name)
    service.seconds += PAUSE_S
    service.calls.go_on()
    eventually(lambda: service.made == ["a", "c", "d"])
    assert caplog.messages == ["The backend does not answer: TimeoutError: no answer within 3 s. Tasks go on."]


def test_the_pause_doubles_with_each_thread_that_still_waits_and_ends_with_a_late_answer(service):
    first = service.block("a")
    service.seconds += PAUSE_S
    service.block("b")
    service.seconds += 2 * PAUSE_S - 0.1
    assert service.ask("c").done(), "the pause is not over"
    first.set()
    eventually(lambda: (answer := service.ask("c")).done() and not answer.exception())


def test_a_late_write_is_not_made_again(service):
    gate = service.gates["a"] = threading.Event()
    service.keep("a")
    eventually(lambda: service.made)
    service.seconds += 3
    service.calls.go_on()
    gate.set()
    eventually(lambda: not service.calls._waiting)
    assert service.made == ["a"]


def test_an_error_that_is_no_answer_begins_a_pause(service):
    def refuse():
        raise ConnectionError("refused")

    answer = service.calls.ask("a", refuse, patience_s=PATIENCE_S)
    assert isinstance(answer.exception(), ConnectionError)
    assert isinstance(service.ask("b").exception(), TimeoutError)


def test_what_is_kept_is_bounded_and_what_is_lost_is_in_the_log(service, monkeypatch, caplog):
    monkeypatch.setattr("hetero_airflow.engines.circuit_breaker._MAX_KEPT", 2)
    service.block("a")
    for name in "bcd":
        service.keep(name)
    service.calls.close()
    assert caplog.messages[1:] == [
        "b is lost: too many calls wait",
        "The backend did not answer before the end: 'c is lost; d is lost'",
    ]
    assert service.ask("e").done()


def test_no_call_to_a_silent_server_outlives_it():
    calls, ended = ServiceCalls("The backend", "Tasks go on.", 3), []
    with silent_server() as server:

        def call():
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.recv(1)
            time.sleep(0.2)  # as a client that tries again
            ended.append(True)

        calls.ask("call", call)
        eventually(lambda: server.connections)
        assert not ended
    assert ended
