"""The store as a scheduler uses it: it reads the tables once in a heartbeat, and after each of its own writes."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy.exc import SQLAlchemyError

from hetero_airflow.errors import StoreError
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.transaction import WriteTransaction

log = logging.getLogger(__name__)


class CachedSnapshotStore(SqlStore):
    """Returns the same snapshot until `invalidate` or a write of its own.

    Each read is a transaction, even if nothing has changed, and much of a heartbeat needs the present state, some of it
    for every task. The next heartbeat sees what other schedulers write meanwhile; no commit relies on the snapshot.
    """

    _cached: Snapshot | None = None

    def invalidate(self) -> None:
        """Let the next `snapshot` read the tables."""
        self._cached = None

    def snapshot(self) -> Snapshot:
        """The state at the last read, or after the last own write."""
        if self._cached is None:
            self._cached = super().snapshot()
        return self._cached

    def _write(self) -> AbstractContextManager[WriteTransaction]:
        self.invalidate()
        return super()._write()


class ToleratedOutages:
    """A database that does not answer, or a full disk, costs one warning for each step, not the scheduler's loop."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {}
        """Step → the text of its last error, until it succeeds."""

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """End the step at such an error, and log it unless it is the same as before."""
        try:
            yield
        except (StoreError, SQLAlchemyError, OSError) as error:
            text = str(error) if isinstance(error, (StoreError, OSError)) else type(error).__name__
            if text != self._errors.get(step):
                log.warning(
                    "%s: %s Waiting tasks keep waiting, running ones keep their devices.", step.capitalize(), text
                )
            self._errors[step] = text
        else:
            self._errors.pop(step, None)
