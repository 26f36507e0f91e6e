"""Takes this host out of scheduling when its provider takes the machine back, and moves its tasks."""

from datetime import datetime

from hetero_airflow.discovery.spot import SpotWatch, notice_source
from hetero_airflow.model.hold import HoldKind, reclaimed_hold
from hetero_airflow.store.store import HoldLifted, HoldPlaced, Store


class SpotHost:
    """The worker that this scheduler reports itself. The agents of other hosts tell the API server.

    :param worker_id: None if the engine runs tasks elsewhere: nothing is asked
    :param setting: ``[hetero] spot_notices``
    """

    def __init__(self, store: Store, worker_id: str | None, setting: str) -> None:
        self._store, self._worker_id = store, worker_id
        self._watch = SpotWatch(notice_source(setting))

    @property
    def has_looked(self) -> bool:
        """Whether it is known if there is a notice."""
        return self._watch.has_looked

    def step(self, now: datetime) -> None:
        """Place or lift the hold on this host, if that has changed. Asks nobody: a thread does that.

        :raises StoreUnavailable: the next step tries again
        """
        if self._worker_id is None:
            return
        self._watch.start()
        snapshot = self._store.snapshot()
        if not any(worker.id == self._worker_id for worker in snapshot.workers):
            return
        is_held = any(hold.kind is HoldKind.RECLAIMED for hold in snapshot.holds_of(self._worker_id))
        if self._watch.notice and not is_held:
            self._store.record([HoldPlaced(reclaimed_hold(self._worker_id, self._watch.notice, now))], now)
        elif is_held and self.has_looked and not self._watch.notice:
            self._store.record([HoldLifted(self._worker_id, "", HoldKind.RECLAIMED)], now)
