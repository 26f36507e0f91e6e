"""What is known of a task's process on another host: from Airflow, from the worker's agent, and from what was sent."""

from __future__ import annotations

from datetime import datetime, timedelta

from hetero_airflow.engines.engine import Liveness, Use, WorkerSight
from hetero_airflow.model.worker import Worker, WorkerState

FRESH = timedelta(seconds=12)
"""What an agent said is taken for true for so long: two of its heartbeats and a bit."""

BEFORE = timedelta(seconds=3)
"""An agent has to look so much later than Airflow last heard of a task to say that its process is gone."""

START_S = 60.0
"""A task that has not begun so long after it was sent can't begin any more: its token is not good for longer."""

_STARTED = timedelta(seconds=START_S + 15)
"""With what Airflow's API server allows for clocks that differ: 10 s, [api_auth] jwt_leeway."""


def judge(use: Use, worker: Worker | None, sight: WorkerSight | None, sent_at: datetime, now: datetime) -> Liveness:
    """Whether a process of a lease runs on a worker that its agent speaks for.

    A worker that is lost gets nothing new until its agent says that no process of a lease that is over lives there, so
    of a lease on it nothing has to be waited for; but a message may lie there, and be found when it comes back.

    :param sight: what the agent said last; None for nothing yet
    :param sent_at: when the task was handed over
    """
    if sight is not None and use.lease.id in sight.leases and now - sight.at < FRESH:
        return Liveness.ALIVE
    if use.state == "queued":
        return Liveness.UNKNOWN if now - sent_at < _STARTED else Liveness.GONE
    if worker is None or worker.state is WorkerState.LOST:
        return Liveness.GONE
    if sight is not None and use.seen_at is not None and sight.at > use.seen_at + BEFORE:
        return Liveness.GONE
    return Liveness.UNKNOWN
