"""Runs a device task in a local run: with a lease of this machine, in a process of its own.

A framework can't bind two devices in one process, and `dag.test()` runs all tasks in one. So the operator forks. The
child has the devices, the parent has Airflow: the child sends its calls to Airflow through a pipe, and then its result
or its exception. What goes through the pipe is pickled: both ends are this program, and nobody else can write into it.
Standard input is inherited, so ``breakpoint()`` works. With ``HETERO_AIRFLOW_IN_PROCESS=1`` nothing
is forked, for debuggers that don't follow a fork.
"""

import os
import pickle
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

from airflow.sdk import Context
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    DagRunTriggerException,
    DownstreamTasksSkipped,
    TaskDeferred,
)
from airflow.sdk.execution_time import task_runner

from hetero_airflow.contract.local_run import LocalRunComms, local_checkpoint_url, requested
from hetero_airflow.contract.task_lease import TaskGang, TaskLease
from hetero_airflow.errors import DeviceUnavailable, HeteroError, RequestError, shorten
from hetero_airflow.runtime.local_leases import LocalSettings, leased_here
from hetero_airflow.runtime.visible_devices import bound_to_lease
from hetero_airflow.settings import IN_PROCESS_VARIABLE
from hetero_airflow.supervisor.run_processes import RunProcesses, contained, enter_run
from hetero_airflow.supervisor.run_start import control_folder

_CONTROL = (TaskDeferred, AirflowRescheduleException, DagRunTriggerException, DownstreamTasksSkipped)
"""With these a task tells Airflow what to do next, so each of their attributes matters."""

PackedError = tuple[bytes, str, str]
"""The pickled exception, its text, and its traceback."""


class TaskProcessLost(HeteroError, RuntimeError):
    """The process of a task in a local run ended without a result."""


class OutcomeNotSent(HeteroError, RuntimeError):
    """The outcome of a task in a local run can't be pickled, so it can't leave the task's process."""


class ChildTraceback(Exception):
    """The cause of an exception that the child raised: its traceback there."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def run_on_local_devices(task: Any, context: Context, work: Callable[[], Any]) -> Any:
    """Lease devices of this machine and run the work on them. Returns its result, or raises its exception.

    :raises AirflowFailException: this machine can't run the task
    """
    ti: Any = context["ti"]
    try:
        request = requested(task, context)
        with leased_here(request, f"{ti.dag_id}.{ti.task_id}", task.log.info, LocalSettings.configured(conf)) as (
            lease,
            note,
        ):
            lease = _with_gang_of_one(task, ti, lease)
            task.log.info("Local run: checkpoints go to %s", local_checkpoint_url())
            with contained(lease, note, task.log) as run, bound_to_lease(lease), control_folder():
                if os.environ.get(IN_PROCESS_VARIABLE, "") not in ("", "0"):
                    return work()
                return _run_in_child(task, context, work, run)
    except (DeviceUnavailable, RequestError) as error:
        raise AirflowFailException(str(error)) from error


def _with_gang_of_one(task: Any, ti: Any, lease: TaskLease) -> TaskLease:
    """The lease of a gang's member: a local run has one member at a time, so each is a gang of its own."""
    if task.gang.max_members == 1 and getattr(task, "node_rank", None) is None:
        return lease
    task.log.warning(
        "Local run: the members of this gang run one after the other, so each one runs as a gang of one. "
        "A scheduler places them together."
    )
    gang = TaskGang(
        name=lease.id,
        rank=0,
        hosts=(lease.worker,),
        leader=lease.id,
        first_index=-1 if ti.map_index is None else ti.map_index,
    )
    return lease.model_copy(update={"gang": gang})


def _run_in_child(task: Any, context: Context, work: Callable[[], Any], run: RunProcesses) -> Any:
    parent, child = Pipe()
    known = frozenset(context)
    sys.stdout.flush()
    sys.stderr.flush()
    supervisor = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Airflow's own thread only serves a socket
        pid = os.fork()
    if pid == 0:
        enter_run(supervisor, run.group)
        parent.close()
        _be_child(task, context, work, child, known)
    child.close()
    run.begin(pid)
    try:
        with parent:
            outcome = _serve(parent, pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:
        run.end()
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        raise
    return _result(outcome, status, context)


def _serve(parent: Connection, pid: int) -> tuple[str, Any] | None:
    """Carry out the child's calls until it sends its outcome; None if it ends without one."""
    exited = os.pidfd_open(pid)
    try:
        while True:
            if parent not in wait([parent, exited]) and not parent.poll():  # it may have sent and ended in between
                return None
            try:
                kind, value = pickle.loads(parent.recv_bytes())  # noqa: S301  from a fork of this process
            except EOFError:
                return None
            if kind != "call":
                return kind, value
            parent.send_bytes(_answer(value))
    finally:
        os.close(exited)


def _answer(message: Any) -> bytes:
    try:
        return pickle.dumps(("answer", task_runner.SUPERVISOR_COMMS.send(message)))
    except Exception as error:  # noqa: BLE001  the child raises it where the task made the call
        return packed_error(error)


def _result(outcome: tuple[str, Any] | None, status: int, context: Context) -> Any:
    if outcome is None:
        end = f"signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"exit code {status}"
        remedy = "See its output above; signal 9 often means that memory ran out"
        raise TaskProcessLost(
            "the result of the task's process", found=f"that the process ended with {end}", remedy=remedy
        )
    kind, value = outcome
    if kind == "error":
        raise unpacked_error(value)
    result, changes, events = value
    variables: Any = context
    variables.update(changes)
    variables["outlet_events"]._dict.update(events)
    return result


class _PipeComms(LocalRunComms):
    """Sends the calls of the child to the parent, which has the connection to Airflow."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, msg: Any) -> Any:
        with self._lock:
            self._connection.send_bytes(pickle.dumps(("call", msg)))
            kind, value = pickle.loads(self._connection.recv_bytes())  # noqa: S301  from the parent of this fork
        if kind == "error":
            raise unpacked_error(value)
        return value


def _be_child(
    task: Any, context: Context, work: Callable[[], Any], connection: Connection, known: frozenset[str]
) -> NoReturn:
    """Run the task, send its outcome, and end this process without the parent's clean-up."""

    def stop(number: int, frame: object) -> None:
        task.on_kill()
        os._exit(128 + number)

    code = 1
    try:
        signal.signal(signal.SIGTERM, stop)
        task_runner.SUPERVISOR_COMMS = _PipeComms(connection)  # type: ignore[assignment]
        connection.send_bytes(_outcome(task, work, context, known))
        code = 0
    except BaseException:  # noqa: BLE001  the parent reports the end; nothing may return into its code
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _outcome(task: Any, work: Callable[[], Any], context: Context, known: frozenset[str]) -> bytes:
    variables: Any = context
    try:
        result = work()
        changes = {name: variables[name] for name in variables if name not in known}
        events = variables["outlet_events"]._dict
        return packed_result(result, changes, events, is_wanted=task.do_xcom_push)
    except BaseException as error:  # noqa: BLE001  also SystemExit and KeyboardInterrupt are the parent's to handle
        return packed_error(error)


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
