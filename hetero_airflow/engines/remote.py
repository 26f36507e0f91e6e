"""What is known of a task's process on another host: from Airflow, from the worker's agent, and from what was sent."""

from __future__ import annotations

from datetime import datetime, timedelta

from hetero_airflow.engines.engine import Liveness, Use, WorkerSight
from hetero_airflow.model.worker import Worker, WorkerState

FRESH = timedelta(seconds=12)
"""What an agent said is taken for true for so long: two of its heartbeats and a bit."""

BEFORE = timedelta(seconds=3)
"""An agent has to look so much later than Airflow last heard of a task to say that its process is gone."""

START_S = 20.0
"""A message that no process of its worker has taken by then is void."""

_STARTED = timedelta(seconds=START_S + 5)


def judge(use: Use, worker: Worker | None, sight: WorkerSight | None, now: datetime) -> Liveness:
    """Whether a process of a lease runs on a worker that its agent speaks for.

    A worker that is lost gets nothing new until its agent says that no process of a lease that is over lives there, so
    of a lease on it nothing has to be waited for.

    :param sight: what the agent said last; None for nothing yet
    """
    if sight is not None and use.lease.id in sight.leases and now - sight.at < FRESH:
        return Liveness.ALIVE
    if worker is None or worker.state is WorkerState.LOST:
        return Liveness.GONE
    if use.state == "queued":
        return Liveness.UNKNOWN if now - use.lease.granted_at < _STARTED else Liveness.GONE
    if sight is not None and use.seen_at is not None and sight.at > use.seen_at + BEFORE:
        return Liveness.GONE
    return Liveness.UNKNOWN
