"""What the process of a task in a local run sends to its parent: a result or an exception, through a pipe.

It is pickled: both ends are this program, the child is a fork of the parent, and nobody else can write into the pipe.
"""

import pickle
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from airflow.sdk.exceptions import (
    AirflowRescheduleException,
    DagRunTriggerException,
    DownstreamTasksSkipped,
    TaskDeferred,
)

from hetero_airflow.errors import HeteroError, shorten
from hetero_airflow.settings import IN_PROCESS_VARIABLE

_CONTROL = (TaskDeferred, AirflowRescheduleException, DagRunTriggerException, DownstreamTasksSkipped)
"""With these a task tells Airflow what to do next, so each of their attributes matters."""

PackedError = tuple[bytes, str, str]
"""The pickled exception, its text, and its traceback."""


class OutcomeNotSent(HeteroError, RuntimeError):
    """The outcome of a task in a local run can't be pickled, so it can't leave the task's process."""


class ChildTraceback(Exception):
    """The cause of an exception that the child raised: its traceback there."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def packed_result(result: Any, changes: Mapping[str, Any], events: Mapping[Any, Any], *, is_wanted: bool) -> bytes:
    """A result, with the changes of the context that can be pickled.

    :param is_wanted: whether Airflow stores the result; if not, one that can't be pickled is left out
    :raises OutcomeNotSent: the result can't be pickled
    """
    try:
        pickle.dumps(result)
    except Exception as error:
        if is_wanted:
            kind = f"{type(result).__module__}.{type(result).__qualname__}"
            raise _not_sent("the result of the task in its parent process", kind, error) from error
        result = None
    return pickle.dumps(("result", (result, _picklable(changes), dict(events))))


def packed_error(error: BaseException) -> bytes:
    """An exception for another process. A class that can't be rebuilt there is replaced by its nearest base."""
    text = "".join(traceback.format_exception(error))
    if isinstance(error, _CONTROL):
        error = _checked_control(error)
    for form in _forms(error):
        with suppress(Exception):
            packed = pickle.dumps(form)
            if _is_same(_rebuilt(packed), error):
                return pickle.dumps(("error", (packed, str(error), text)))
    return pickle.dumps(("error", (b"", f"{type(error).__name__} in the process of the task", text)))


def unpacked_error(packed: PackedError) -> BaseException:
    """The exception, with its traceback in the other process as the cause."""
    form, summary, text = packed
    try:
        error = _rebuilt(form)
    except Exception:  # noqa: BLE001  for example, only the child can import its module
        error = RuntimeError(summary)
    error.__cause__ = ChildTraceback(text)
    return error


def _forms(error: BaseException) -> Iterator[Any]:
    """What can stand for the exception, the best first: itself; a class, its arguments and its attributes."""
    yield error
    attributes = _picklable(error.__dict__)
    for cls in type(error).__mro__:
        if issubclass(cls, BaseException):
            yield cls, error.args, attributes
            with suppress(Exception):
                yield cls, (str(error),), attributes


def _rebuilt(packed: bytes) -> BaseException:
    form: Any = pickle.loads(packed)  # noqa: S301  from a fork of this process, or made by it
    if isinstance(form, BaseException):
        return form
    cls, arguments, attributes = form
    error: BaseException = cls(*arguments) if cls.__module__ == "builtins" else cls.__new__(cls, *arguments)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


def _is_same(rebuilt: BaseException, error: BaseException) -> bool:
    """Whether it says the same. Addresses of objects, which differ, do not count."""
    texts = [re.sub(r"0x[0-9a-f]+", "", str(each)) for each in (rebuilt, error)]
    return texts[0] == texts[1] and getattr(rebuilt, "code", None) == getattr(error, "code", None)


def _checked_control(error: BaseException) -> BaseException:
    """The exception; or the error to raise in its place if one of its attributes can't be pickled."""
    for name, value in error.__dict__.items():
        try:
            pickle.loads(pickle.dumps(value))  # noqa: S301  made by this process
        except Exception as problem:  # noqa: BLE001  any class may fail in its own way
            return _not_sent(f"{type(error).__name__} in the parent process of the task", name, problem)
    return error


def _picklable(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, value in values.items():
        with suppress(Exception):
            pickle.dumps(value)
            kept[name] = value
    return kept


def _not_sent(asked: str, name: str, problem: Exception) -> OutcomeNotSent:
    return OutcomeNotSent(
        asked,
        found=f"{name}, which can't be pickled ({shorten(str(problem))})",
        remedy=f"Use one that can, or set {IN_PROCESS_VARIABLE}=1, so that the task has no process of its own",
    )
