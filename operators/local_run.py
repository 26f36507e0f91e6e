"""Runs a device task in a local run: with a lease of this machine, in a process of its own.

A framework can't bind two devices in one process, and `dag.test()` runs all tasks in one. So the operator forks. The
child has the devices, the parent has Airflow: the child sends its calls to Airflow through a pipe, and then its result
or its exception. Standard input is inherited, so ``breakpoint()`` works. With ``HETERO_AIRFLOW_IN_PROCESS=1`` nothing
is forked, for debuggers that don't follow a fork.
"""

import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

from airflow.sdk import Context
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time import task_runner

from hetero_airflow.contract.local_run import LocalRunComms, local_checkpoint_url, requested
from hetero_airflow.contract.task_lease import TaskGang, TaskLease
from hetero_airflow.errors import DeviceUnavailable, HeteroError, RequestError
from hetero_airflow.operators.local_run_outcome import packed_error, packed_result, unpacked_error
from hetero_airflow.runtime.local_leases import LocalSettings, leased_here
from hetero_airflow.runtime.visible_devices import bound_to_lease
from hetero_airflow.settings import IN_PROCESS_VARIABLE
from hetero_airflow.supervisor.run_processes import RunProcesses, contained, enter_run
from hetero_airflow.supervisor.run_start import control_folder


class TaskProcessLost(HeteroError, RuntimeError):
    """The process of a task in a local run ended without a result."""


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
