"""How many requests behind one in the queue are its equals: what serves one of them serves any."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from hetero_airflow.model.snapshot import PendingRequest


class EquivalenceClasses:
    """The requests of one decision by what they ask for, each line in the order of `queue.by_priority`.

    Members of gangs are left out. Nothing is counted before it is asked for, and then all of them once.

    >>> from hetero_airflow.testing import a_pending
    >>> first, *others = [a_pending(name, "gpu", at_s) for at_s, name in enumerate("abc")]
    >>> equals = EquivalenceClasses([first, *others, a_pending("d", "gpu:2", 9)])
    >>> [equals.behind(one) for one in (first, *others)]
    [2, 1, 0]
    """

    def __init__(self, pending: Iterable[PendingRequest]) -> None:
        self._pending = pending
        self._lines: dict[str, list[tuple[int, datetime, str]]] | None = None

    def behind(self, pending: PendingRequest) -> int:
        """How many equal ones come after it."""
        if self._lines is None:
            lines: defaultdict[str, list[tuple[int, datetime, str]]] = defaultdict(list)
            for one in self._pending:
                if not one.gang:
                    lines[one.request.fingerprint].append(_place(one))
            self._lines = {fingerprint: sorted(line) for fingerprint, line in lines.items()}
        line = self._lines.get(pending.request.fingerprint, [])
        return len(line) - bisect_right(line, _place(pending))


def _place(pending: PendingRequest) -> tuple[int, datetime, str]:
    return -pending.weight, pending.submitted_at, pending.id
