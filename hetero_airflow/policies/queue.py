"""Orders of the queue. Each is total: the request's id breaks the last tie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from hetero_airflow.model.request import Priority
from hetero_airflow.model.snapshot import Pending, Snapshot

_RANKS = {priority: priority.rank for priority in Priority}


def by_priority(pending: Iterable[Pending], snapshot: Snapshot) -> list[Pending]:
    """The higher class first, then Airflow's greater weight, then the older."""
    classes: defaultdict[tuple[int, int], list[Pending]] = defaultdict(list)
    for one in by_age(pending, snapshot):
        classes[_RANKS[one.request.priority], -one.weight].append(one)
    return [one for key in sorted(classes) for one in classes[key]]


def by_age(pending: Iterable[Pending], snapshot: Snapshot) -> list[Pending]:
    """The oldest first."""
    return sorted(pending, key=attrgetter("submitted_at", "id"))


def by_turn(pending: Iterable[Pending], snapshot: Snapshot) -> list[Pending]:
    """One of each DAG, then the next of each; a DAG's oldest first, and the DAG that was served longest ago first."""
    queue: list[tuple[int, int, Pending]] = []
    for dag_id, group in groupby(sorted(by_age(pending, snapshot), key=attrgetter("dag_id")), attrgetter("dag_id")):
        last = snapshot.dag_tokens.get(dag_id, 0)
        queue += ((turn, last, one) for turn, one in enumerate(group))
    queue.sort(key=lambda entry: (entry[0], entry[1], entry[2].submitted_at, entry[2].id))
    return [one for _, _, one in queue]
