"""What a task's process sends to its parent in a local run."""

import pickle
import subprocess
import sys
import threading
from multiprocessing.connection import Pipe

import pytest
from airflow.sdk.exceptions import TaskDeferred
from pydantic import TypeAdapter, ValidationError

from hetero_airflow.operators import local_run
from hetero_airflow.operators.local_run import OutcomeNotSent, packed_error, packed_result, unpacked_error


class Changed(Exception):
    """Its `__init__` can't be called with its own arguments."""

    def __init__(self, *, reason):
        super().__init__("no data: " + reason)
        self.reason = reason
        self.lock = threading.Lock()


class Coded(SystemExit):
    def __init__(self, *, number):
        super().__init__(number)


class Addressed(Exception):
    pass


class Thing:
    pass


def raised(error):
    try:
        raise error
    except BaseException as error:  # noqa: BLE001  as in the code under test
        kind, packed = pickle.loads(packed_error(error))
    assert kind == "error"
    return unpacked_error(packed)


def a_validation_error():
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(int).validate_python("x")
    return caught.value


def a_decode_error():
    with pytest.raises(UnicodeDecodeError) as caught:
        b"\xff".decode()
    return caught.value


def a_local_error():
    class Local(OSError):
        pass

    return Local(5, "the disk")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (a_validation_error(), ValueError),
        (a_decode_error(), UnicodeDecodeError),
        (SyntaxError("bad", ("f.py", 1, 2, "x", 1, 3)), SyntaxError),
        (SystemExit(3), SystemExit),
        (Coded(number=3), SystemExit),
        (Changed(reason="x"), Changed),
        (a_local_error(), OSError),
        (KeyError("k"), KeyError),
        (OSError(2, "no"), FileNotFoundError),
    ],
)
def test_an_exception_says_the_same_in_the_parent(error, kind):
    rebuilt = raised(error)
    assert isinstance(rebuilt, kind)
    assert str(rebuilt) == str(error)
    assert getattr(rebuilt, "code", None) == getattr(error, "code", None)
    assert "in raised" in str(rebuilt.__cause__)


def test_an_exception_without_a_text_keeps_its_traceback():
    class Silent(Exception):
        def __str__(self):
            raise ValueError

    error = raised(Silent())
    assert str(error) == "Silent in the process of the task"
    assert "in raised" in str(error.__cause__)


def test_an_object_in_the_arguments_may_have_another_address():
    assert isinstance(raised(Addressed(Thing())), Addressed)


def test_an_exception_that_only_the_child_can_import_keeps_its_text_and_traceback(monkeypatch):
    _, packed = pickle.loads(packed_error(Changed(reason="x")))
    monkeypatch.delattr(sys.modules[__name__], "Changed")
    error = unpacked_error(packed)
    assert (type(error), str(error)) == (RuntimeError, "no data: x")
    assert "no data: x" in str(error.__cause__)


def test_a_deferral_travels_whole_or_fails_with_a_clear_error():
    deferred = raised(TaskDeferred(trigger="t", method_name="m", kwargs={"a": 1}))
    assert (deferred.trigger, deferred.method_name, deferred.kwargs) == ("t", "m", {"a": 1})
    error = raised(TaskDeferred(trigger=threading.Lock(), method_name="m"))
    assert isinstance(error, OutcomeNotSent)
    assert "found trigger, which can't be pickled" in str(error)


def test_what_cannot_be_pickled_is_left_out_if_nobody_needs_it():
    packed = packed_result(1, {"lock": threading.Lock(), "a": 2}, {}, is_wanted=True)
    assert pickle.loads(packed) == ("result", (1, {"a": 2}, {}))
    assert pickle.loads(packed_result(threading.Lock(), {}, {}, is_wanted=False)) == ("result", (None, {}, {}))
    with pytest.raises(OutcomeNotSent, match=r"found _thread\.lock, which can't be pickled"):
        packed_result(threading.Lock(), {}, {}, is_wanted=True)


def test_an_outcome_that_was_sent_just_before_the_end_is_read(monkeypatch):
    parent, child = Pipe()
    child.send_bytes(pickle.dumps(("result", 1)))
    monkeypatch.setattr(local_run, "wait", lambda connections: connections[1:])
    with subprocess.Popen(["true"]) as process, parent, child:
        assert local_run._serve(parent, process.pid) == ("result", 1)
