"""The coordinator: runs device tasks on a worker. It binds devices before the DAG file is parsed, and leaves no orphan.

Airflow calls it for every engine if ``[sdk] queue_to_coordinator`` maps the queue of device tasks to it. Without it,
the operator binds the devices after the DAG file was parsed, a task whose supervisor dies lives on until the executor
finds it, and a preempted task gets no notice to save.
"""

import faulthandler
import functools
import os
import selectors
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any

from airflow.sdk.api.client import ServerResponseError
from airflow.sdk.api.datamodels._generated import TaskInstanceState
from airflow.sdk.configuration import conf
from airflow.sdk.execution_time.comms import RescheduleTask, RetryTask, StartupDetails
from airflow.sdk.execution_time.coordinator import BaseCoordinator
from airflow.sdk.execution_time.supervisor import (
    SERVER_TERMINATED,
    STATES_SENT_DIRECTLY,
    ActivitySubprocess,
    _subprocess_main,
)

from hetero_airflow.contract.envelope import read_lease
from hetero_airflow.contract.execution_api import is_outage
from hetero_airflow.contract.notice import DUMP_SIGNAL
from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.contract.task_secret import unwrapped
from hetero_airflow.engines.host.cgroups import oom_kills
from hetero_airflow.engines.host.processes import start_ticks
from hetero_airflow.recovery.decisions import Fail, Requeue
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.runtime.visible_devices import environment_set
from hetero_airflow.settings import SECTION, TASK_SECRET_VARIABLE, default
from hetero_airflow.supervisor.execution_api_calls import ExecutionApiStates, repeat_after_outages
from hetero_airflow.supervisor.hang_watch import HangWatch
from hetero_airflow.supervisor.monitor import TaskMonitor
from hetero_airflow.supervisor.run_end import judge_end
from hetero_airflow.supervisor.run_processes import RunProcesses, enter_run
from hetero_airflow.supervisor.run_start import prepared_run
from hetero_airflow.supervisor.usage import cpu_s, dumping_ranks, utilization

_UNREPORTED_ENDS = (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY)
"""The final states that Airflow gives a process that failed and did not report why."""

_NOT_THE_TASKS_PROCESS = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE})
"""Airflow's answers to the heartbeat of a process that does not run the task any more."""


class DeviceCoordinator(BaseCoordinator):
    """Runs a task as Airflow does, on the devices of its lease."""

    def execute_task(
        self,
        *,
        what: Any,
        dag_rel_path: Any,
        bundle_info: Any,
        client: Any,
        logger: Any = None,
        sentry_integration: str = "",
        subprocess_logs_to_stdout: bool,
        **kwargs: Any,
    ) -> BaseCoordinator.ExecutionResult:
        """Fork the task's process with its devices bound, wait for it, and end the processes that it left behind."""
        lease = read_lease(what.context_carrier)
        with prepared_run(what, lease, logger) as (run, folder), environment_set(_secret_of(lease, client)):
            process = DeviceSupervisor.start(
                what=what,
                dag_rel_path=dag_rel_path,
                bundle_info=bundle_info,
                client=client,
                logger=logger,
                sentry_integration=sentry_integration,
                subprocess_logs_to_stdout=subprocess_logs_to_stdout,
                target=functools.partial(_run_until_parent_dies, os.getpid(), run.group if run else None),
            )
            if lease and run:
                run.begin(process.pid, folder)
                process.attach_lease(lease, folder, run)
            exit_code = process.wait()
        return self.ExecutionResult(exit_code, process.final_state)


class DeviceSupervisor(ActivitySubprocess):
    """Airflow's supervisor of one task. With each heartbeat it also monitors the task, and it judges a sudden end.

    It reports the end only while its process runs the task. When a node comes back after lost heartbeats, the task may
    run elsewhere, and Airflow would take the end of the old process for the end of the new one.
    """

    _lease: TaskLease | None = None
    _monitor: TaskMonitor
    _run: RunProcesses
    _oom_kills: int | None = None
    _epoch = 0
    """The task instance's `max_tries`."""
    _hung_end: RescheduleTask | None = None
    """A task that hung was stopped and asked to be rescheduled: its message, until the recovery rules have decided."""
    _is_told_to_end = False
    """Whether it got SIGTERM or SIGINT."""
    _is_judged = False
    """Whether the rules have decided."""

    def attach_lease(self, lease: TaskLease, folder: Path, run: RunProcesses) -> None:
        """Monitor the task of a lease, and keep the record of its processes, from the next heartbeat on."""
        self._lease, self._run = lease, run
        self._oom_kills = oom_kills()
        self._monitor = TaskMonitor(
            lease.id,
            folder,
            ExecutionApiStates(self.client, self.id),
            HangWatch(
                conf.getfloat(SECTION, "hang_timeout_s", fallback=float(default("hang_timeout_s"))),
                functools.partial(cpu_s, self.pid),
                functools.partial(utilization, lease),
            ),
            self._send,
            timedelta(seconds=conf.getfloat(SECTION, "grace_s", fallback=float(default("grace_s")))),
            self.process_log,
        )

    def send_msg(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """As in Airflow; reads the epoch from the start message of the task."""
        if isinstance(msg, StartupDetails):
            self._epoch = msg.ti_context.max_tries
        super().send_msg(msg, *args, **kwargs)

    def _monitor_subprocess(self) -> None:
        """Wait until the task has ended. If it saves checkpoints, SIGTERM and SIGINT are notices.

        A node that is drained sends SIGTERM. Ctrl-C in the terminal of a Celery worker sends SIGINT. A second signal
        ends a supervisor whose task has ended: it may wait for the API server for an hour, to report the end.

        Airflow's loop waits for the task's sockets. A process that closes them and exits a moment later is not seen to
        have ended before the next heartbeat is due. So the loop waits for the process, too.
        """
        forward = signal.getsignal(signal.SIGTERM)  # Airflow has the same for SIGINT

        def save_first(number: int, frame: FrameType | None) -> None:
            if self._is_told_to_end and start_ticks(self.pid) is None:
                raise SystemExit(128 + number)
            self._is_told_to_end = True
            will_save = self._lease is not None and self._monitor.request_stop()
            if not will_save and callable(forward):
                forward(number, frame)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, save_first)
        with suppress(OSError):  # a kernel before 5.3 can't tell
            exited = open(os.pidfd_open(self.pid), "rb", buffering=0)  # noqa: SIM115  the loop closes it
            self.selector.register(exited, selectors.EVENT_READ, (lambda _: False, self.selector.unregister))
        super()._monitor_subprocess()  # type: ignore[no-untyped-call]

    def _send_heartbeat_if_needed(self) -> None:
        before = self._last_heartbeat_attempt
        super()._send_heartbeat_if_needed()  # type: ignore[no-untyped-call]
        if self._lease is not None and self._last_heartbeat_attempt != before:
            self._run.check()
            is_wanted = self.failed_heartbeats == 0 and self._terminal_state is None
            self._monitor.check(datetime.now(UTC), is_online=is_wanted)

    def _check_subprocess_exit(self, *args: Any, **kwargs: Any) -> int | None:
        """As in Airflow; ends what the task left behind at once, since it may keep the sockets of the task open."""
        exit_code: int | None = super()._check_subprocess_exit(*args, **kwargs)
        if exit_code is not None and self._lease is not None:
            self._monitor.see_end(datetime.now(UTC), is_online=self._is_wanted())
            self._run.end()
        return exit_code

    def _is_wanted(self) -> bool:
        """Whether Airflow answers, and no other process runs the task."""
        return self.failed_heartbeats == 0 and self._terminal_state != SERVER_TERMINATED

    def _send(self, number: signal.Signals) -> None:
        """Signal the task's process group; `DUMP_SIGNAL` goes only to the task's process and its ranks."""
        if number is not DUMP_SIGNAL:
            self._signal_subprocess(number)
            return
        for pid in (self.pid, *dumping_ranks(self.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _handle_request(self, msg: Any, log: Any, req_id: int) -> None:
        """As in Airflow; if no API server answers, the task waits for its answer until one does."""
        handle = super()._handle_request
        self._repeat_after_outages(lambda: handle(msg, log, req_id))

    def _repeat_after_outages(self, call: Callable[[], None]) -> None:
        if self._lease is None:
            call()
        else:
            repeat_after_outages(call, self.client, self.process_log)

    def _send_terminal_state_msg(self, msg: Any) -> None:
        """As in Airflow, unless another process runs the task now. An end is reported after an outage too."""
        self._repeat_after_outages(lambda: self._send_end(msg))

    def _send_end(self, msg: Any) -> None:
        has_hung = self._lease is not None and self._monitor.hung_s is not None
        if has_hung and not self._is_judged and isinstance(msg, RescheduleTask):
            self._hung_end = msg
        elif self._lease is None or self._runs_the_task():
            super()._send_terminal_state_msg(msg)
        else:
            self._pending_terminal_state_msg = None

    def _runs_the_task(self) -> bool:
        """Whether this process runs the task for Airflow, or Airflow can't be asked. Only a heartbeat tells that."""
        if self._terminal_state == SERVER_TERMINATED:
            return False
        try:
            self.client.task_instances.heartbeat(self.id, pid=self.pid)
        except ServerResponseError as error:
            if error.response.status_code not in _NOT_THE_TASKS_PROCESS:
                return True
            self.process_log.warning("Another process runs the task for Airflow; the end of this one is not reported")
            self._terminal_state = SERVER_TERMINATED
            return False
        except Exception as error:  # any other failure on the way to the API
            if is_outage(error):
                raise
            self.process_log.warning("Airflow can't tell whether this process still runs the task", error=str(error))
        return True

    def update_task_state_if_needed(self) -> None:
        """Report to Airflow how the task ended, if the task could not do so itself.

        A task that was killed or crashed through no fault of its own is rescheduled with the same try.
        """
        self._repeat_after_outages(self._judge_end)

    def _judge_end(self) -> None:
        is_unreported = self._pending_terminal_state_msg is None and self._terminal_state not in STATES_SENT_DIRECTLY
        if self._lease is not None and is_unreported and not self._runs_the_task():
            return
        is_reported = self._terminal_state is not None or self._pending_terminal_state_msg is not None
        if self._lease is None or is_reported or (self.final_state not in _UNREPORTED_ENDS and self._hung_end is None):
            super().update_task_state_if_needed()  # type: ignore[no-untyped-call]
            return
        now, self._is_judged = datetime.now(UTC), True
        try:
            states = ExecutionApiStates(self.client, self.id)
            decision = judge_end(
                self._evidence(), self._lease, self._epoch, states, now, has_retries=self._should_retry
            )
        except Exception as error:  # whatever the API answers, the end must be reported
            if is_outage(error):
                raise
            self.process_log.warning("The task's end can't be recorded; it is left to its retries", error=str(error))
            self._leave_to_retries(now)
            return
        self.process_log.warning(decision.message)
        if isinstance(decision, Requeue):
            self._send_terminal_state_msg(
                RescheduleTask(reschedule_date=now + timedelta(seconds=decision.delay_s), end_date=now)
            )
        elif isinstance(decision, Fail):
            self._fail(now)
        else:
            self._leave_to_retries(now, decision.delay_s)

    def _leave_to_retries(self, now: datetime, delay_s: float | None = None) -> None:
        if self._hung_end is None:
            super().update_task_state_if_needed()  # type: ignore[no-untyped-call]
        elif self._should_retry:
            self._send_terminal_state_msg(RetryTask(end_date=now, retry_delay_seconds=delay_s))
        else:
            self._fail(now)

    def _fail(self, now: datetime) -> None:
        self.client.task_instances.finish(
            id=self.id, state=TaskInstanceState.FAILED, when=now, rendered_map_index=self._rendered_map_index
        )

    def _evidence(self) -> Evidence:
        return Evidence(
            exit_code=self._exit_code,
            oom_kills=oom_kills(self._oom_kills),
            notice=self._monitor.notice,
            hung_s=self._monitor.hung_s,
        )


def _secret_of(lease: TaskLease | None, client: Any) -> dict[str, str]:
    """The variable with the task's secret, if it has a lease. The client still has the token of the task's message."""
    return {TASK_SECRET_VARIABLE: unwrapped(lease.secret, getattr(client.auth, "token", ""))} if lease else {}


def _run_until_parent_dies(parent: int, group: Path | None) -> None:
    """Run the task; the process dies with its supervisor, so that no orphan keeps a device."""
    enter_run(parent, group)
    faulthandler.register(DUMP_SIGNAL, file=2, all_threads=True)
    _subprocess_main()
