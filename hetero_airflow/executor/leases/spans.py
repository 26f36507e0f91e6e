"""OpenTelemetry spans of waits and leases, as children of Airflow's own span of the task's try.

Airflow stores the ids of that span with the task instance (`context_carrier`) before the task is queued, and emits the
span when the try ends. So any process that Airflow has configured for traces can emit children of it, in any order.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow.configuration import conf
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.executor.airflow_db.task_instances import TaskInstances
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.run import RunEnd

_FAILURES = (RunEnd.FAILED, RunEnd.LOST)


def airflow_tracer() -> Tracer | None:
    """The tracer of this process; None without ``[traces] otel_on``."""
    return trace.get_tracer("hetero_airflow") if conf.getboolean("traces", "otel_on", fallback=False) else None


class LeaseSpans:
    """Emits ``hetero.wait`` and ``hetero.lease``. Without a tracer, it does nothing and reads nothing."""

    def __init__(self, tasks: TaskInstances, tracer: Tracer | None) -> None:
        self._tasks = tasks
        self.tracer = tracer

    def end_wait(self, ti: Any, lease: TaskLease, since: datetime, until: datetime) -> None:
        """A task has waited from the moment when it was queued until it was handed over with its lease.

        :param ti: the task instance of a workload
        """
        held = {"hetero.worker": lease.worker, "hetero.devices": lease.ids, "hetero.model": lease.model}
        self._emit("hetero.wait", ti.context_carrier, _task_attributes(ti) | held, (since, until))

    def end_lease(self, key: Any, lease: Lease, end: RunEnd | None, until: datetime) -> None:
        """The devices of a lease are free.

        :param key: Airflow's key of the task instance
        """
        if self.tracer is None:
            return
        devices = tuple(claim.device_id for claim in lease.claims)
        held = {"hetero.worker": lease.worker_id, "hetero.devices": devices, "hetero.outcome": end or "unknown"}
        carrier = self._tasks.trace_carrier(lease.request_id)
        status = Status(StatusCode.ERROR if end in _FAILURES else StatusCode.UNSET)
        self._emit("hetero.lease", carrier, _task_attributes(key) | held, (lease.granted_at, until), status)

    def _emit(
        self,
        name: str,
        carrier: Mapping[str, Any] | None,
        attributes: Mapping[str, Any],
        times: tuple[datetime, datetime],
        status: Status | None = None,
    ) -> None:
        parent = None if self.tracer is None else _sampled_parent(carrier)
        if self.tracer is None or parent is None:
            return
        begin_ns, end_ns = (int(time.timestamp() * 1e9) for time in times)
        span = self.tracer.start_span(name, parent, attributes=attributes, start_time=begin_ns)
        if status is not None:
            span.set_status(status)
        span.end(max(begin_ns, end_ns))


def _sampled_parent(carrier: Mapping[str, Any] | None) -> Context | None:
    """The context with Airflow's span; None if there is none, or if the DAG run is not sampled."""
    if not carrier or "traceparent" not in carrier:
        return None
    parent = TraceContextTextMapPropagator().extract(carrier)
    return parent if trace.get_current_span(parent).get_span_context().trace_flags.sampled else None


def _task_attributes(names: Any) -> dict[str, Any]:
    """The attributes that Airflow's own spans have, of a key or a task instance."""
    return {
        "airflow.dag_id": names.dag_id,
        "airflow.dag_run.run_id": names.run_id,
        "airflow.task_id": names.task_id,
        "airflow.task_instance.try_number": names.try_number,
        "airflow.task_instance.map_index": -1 if names.map_index is None else names.map_index,
    }
