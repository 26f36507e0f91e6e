"""A queue in which DAGs take turns."""

from collections import deque
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class TurnQueue(Generic[_Item]):
    """Gives the next item of each DAG before the second of another, so a DAG with many items delays only itself.

    >>> queue = TurnQueue[int]()
    >>> for dag_id, item in [("a", 1), ("a", 2), ("b", 3)]:
    ...     queue.put(dag_id, item)
    >>> [queue.take(), queue.take(), queue.take()], bool(queue)
    ([1, 3, 2], False)
    """

    def __init__(self) -> None:
        self._items: dict[str, deque[_Item]] = {}
        """The DAG whose turn it is comes first."""

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, dag_id: str, item: _Item) -> None:
        """Add an item, after the others of its DAG."""
        self._items.setdefault(dag_id, deque()).append(item)

    def take(self) -> _Item:
        """The next item; the queue must not be empty."""
        dag_id = next(iter(self._items))
        items = self._items.pop(dag_id)
        item = items.popleft()
        if items:
            self._items[dag_id] = items  # after all other DAGs
        return item
