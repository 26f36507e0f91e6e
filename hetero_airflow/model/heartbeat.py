"""When workers' agents were heard last, and the API server through which they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

SERVER_HEARTBEAT_S = 5.0
"""How often an API server says that it is there."""

_MAX_GAP = timedelta(seconds=1.5 * SERVER_HEARTBEAT_S)
"""After more than that between two of its words, an API server was away."""


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """What the agent of a worker said last."""

    at: datetime
    leases: frozenset[str]
    """Ids of the leases whose processes are on the host."""


@dataclass(frozen=True, slots=True)
class ServerHeartbeat:
    """When an API server, any of them, said that it is there."""

    since: datetime
    """No API server has started and none was away since then; before, agents may have spoken to nobody."""
    at: datetime
    """The last time."""


def next_server_heartbeat(before: ServerHeartbeat | None, now: datetime, *, is_new: bool) -> ServerHeartbeat:
    """What is known of the API server once one of its processes has spoken; the clocks of several may differ a little.

    :param is_new: it is the first word of that process
    """
    if before is None or is_new or not -_MAX_GAP <= now - before.at <= _MAX_GAP:
        return ServerHeartbeat(now, now)
    return ServerHeartbeat(before.since, max(before.at, now))


def time_without_heartbeat(seen_at: datetime, server: ServerHeartbeat, now: datetime) -> timedelta:
    """How long an agent was silent while somebody was there to hear it.

    Told by the API server's clock as far as that is known, since `seen_at` is: the clock of whoever asks, which says
    `now`, may be minutes from it.

    >>> from hetero_airflow.testing import EPOCH
    >>> later = EPOCH + timedelta(minutes=1)
    >>> time_without_heartbeat(EPOCH, ServerHeartbeat(EPOCH, later), later).total_seconds()
    60.0
    >>> time_without_heartbeat(EPOCH, ServerHeartbeat(EPOCH, EPOCH), later).total_seconds()
    5.0
    """
    there = min(max(now, server.at), server.at + timedelta(seconds=SERVER_HEARTBEAT_S))
    return there - max(seen_at, server.since)
