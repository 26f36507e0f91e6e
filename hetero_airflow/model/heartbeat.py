"""The last heartbeats of workers' agents, and of the API servers that receive them."""

from dataclasses import dataclass
from datetime import datetime, timedelta

SERVER_HEARTBEAT_S = 5.0
"""Interval between two heartbeats of an API server."""

_MAX_GAP = timedelta(seconds=1.5 * SERVER_HEARTBEAT_S)
"""After a longer gap between two heartbeats, the API server counts as having been away."""


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """The last heartbeat of a worker's agent."""

    at: datetime
    leases: frozenset[str]
    """Ids of the leases whose processes are on the host."""


@dataclass(frozen=True, slots=True)
class ServerHeartbeat:
    """The last heartbeat of any API server."""

    since: datetime
    """No API server started or was away since then. Before, heartbeats of agents may have been lost."""
    at: datetime


def next_server_heartbeat(before: ServerHeartbeat | None, now: datetime, *, is_new: bool) -> ServerHeartbeat:
    """The heartbeat to store after one from a process of the API server. Clocks of several may differ a little.

    :param is_new: this is the first heartbeat of that process
    """
    if before is None or is_new or not -_MAX_GAP <= now - before.at <= _MAX_GAP:
        return ServerHeartbeat(now, now)
    return ServerHeartbeat(before.since, max(before.at, now))


def time_without_heartbeat(seen_at: datetime, server: ServerHeartbeat, now: datetime) -> timedelta:
    """How long an agent sent no heartbeat while an API server was there to receive it.

    `seen_at` comes from the API server's clock, so that clock counts where its time is known. `now` comes from the
    caller's clock, which may be minutes off.

    >>> from hetero_airflow.testing import EPOCH
    >>> later = EPOCH + timedelta(minutes=1)
    >>> time_without_heartbeat(EPOCH, ServerHeartbeat(EPOCH, later), later).total_seconds()
    60.0
    >>> time_without_heartbeat(EPOCH, ServerHeartbeat(EPOCH, EPOCH), later).total_seconds()
    5.0
    """
    server_now = min(max(now, server.at), server.at + timedelta(seconds=SERVER_HEARTBEAT_S))
    return server_now - max(seen_at, server.since)
