"""Orders of the queue, and where a request stands among equal ones. Each order is total: the id breaks ties."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter

from hetero_airflow.model.snapshot import PendingRequest, Snapshot


def by_priority(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
    """The higher class first, then Airflow's greater weight, then the older request."""
    return sorted(pending, key=queue_key)


def queue_key(pending: PendingRequest) -> tuple[int, int, datetime, str]:
    """The sort key of `by_priority`."""
    return pending.request.priority.rank, -pending.weight, pending.submitted_at, pending.id


def by_age(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
    """The oldest request first."""
    return sorted(pending, key=attrgetter("submitted_at", "id"))


def by_turn(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
    """One request of each DAG, then the next of each.

    A DAG's oldest request goes first, and the DAG that got a device longest ago.
    """
    turns: Counter[str] = Counter()
    rounds: defaultdict[tuple[int, int], list[PendingRequest]] = defaultdict(list)
    for request in by_age(pending, snapshot):
        rounds[turns[request.dag_id], snapshot.dag_tokens.get(request.dag_id, 0)].append(request)
        turns[request.dag_id] += 1
    return [request for key in sorted(rounds) for request in rounds[key]]


class EquivalenceClasses:
    """The requests of one decision by what they ask for, each class in the order of the queue.

    Members of gangs are left out. The classes are computed at the first question.

    >>> from hetero_airflow.testing import a_pending
    >>> first, *others = [a_pending(name, "gpu", at_s) for at_s, name in enumerate("abc")]
    >>> classes = EquivalenceClasses([first, *others, a_pending("d", "gpu:2", 9)])
    >>> [classes.count_behind(request) for request in (first, *others)]
    [2, 1, 0]
    """

    def __init__(self, pending: Iterable[PendingRequest]) -> None:
        self._pending = pending
        self._classes: dict[str, list[tuple[int, int, datetime, str]]] | None = None

    def count_behind(self, pending: PendingRequest) -> int:
        """How many equal requests come after it."""
        if self._classes is None:
            classes: defaultdict[str, list[tuple[int, int, datetime, str]]] = defaultdict(list)
            for request in self._pending:
                if not request.gang:
                    classes[request.request.fingerprint].append(queue_key(request))
            self._classes = {fingerprint: sorted(keys) for fingerprint, keys in classes.items()}
        keys = self._classes.get(pending.request.fingerprint, [])
        return len(keys) - bisect_right(keys, queue_key(pending))
