"""Orders of the queue. Each is total: the request's id breaks the last tie."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from operator import attrgetter

from hetero_airflow.model.request import Priority
from hetero_airflow.model.snapshot import PendingRequest, Snapshot

_RANKS = {priority: priority.rank for priority in Priority}


def by_priority(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
    """The higher class first, then Airflow's greater weight, then the older."""
    classes: defaultdict[tuple[int, int], list[PendingRequest]] = defaultdict(list)
    for one in by_age(pending, snapshot):
        classes[_RANKS[one.request.priority], -one.weight].append(one)
    return [one for key in sorted(classes) for one in classes[key]]


def by_age(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
    """The oldest first."""
    return sorted(pending, key=attrgetter("submitted_at", "id"))


def by_turn(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
    """One of each DAG, then the next of each; a DAG's oldest first, and the DAG that was served longest ago first."""
    turns: Counter[str] = Counter()
    rounds: defaultdict[tuple[int, int], list[PendingRequest]] = defaultdict(list)
    for one in by_age(pending, snapshot):
        rounds[turns[one.dag_id], snapshot.dag_tokens.get(one.dag_id, 0)].append(one)
        turns[one.dag_id] += 1
    return [one for key in sorted(rounds) for one in rounds[key]]
