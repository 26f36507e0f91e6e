"""What the scheduler sees now, and what its next cycle decides."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial

from sqlalchemy import Engine, select

from hetero_airflow.errors import HeteroError
from hetero_airflow.executor.configuration import engine_name, read_configuration
from hetero_airflow.executor.context.dag_edges import DagEdges
from hetero_airflow.executor.context.policy_context import PolicyContext
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies import load_policy
from hetero_airflow.policies.policy import period_of
from hetero_airflow.scheduling.advice.start_estimate import Decide
from hetero_airflow.scheduling.paused_requests import decide_without_paused
from hetero_airflow.store import tables
from hetero_airflow.store.sql.reads import read_pending
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.transaction import read_chunks, read_transaction


class LiveSnapshots:
    """Reads snapshots with the policy context that the scheduler adds. Of the history, it reads each run once."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._context = PolicyContext(store, read_configuration(), DagEdges(store.connect))
        self._engine = engine_name()

    def read(self) -> Snapshot:
        """The newest snapshot, in which leases may be taken back.

        :raises StoreUnavailable: the database is down, locked or not migrated
        """
        self._context.refresh()
        return replace(self._context.add_to(self._store.snapshot()), can_preempt=True)

    def read_for_decisions(self) -> Snapshot:
        """The same with the workers of the configured engine alone, since the scheduler decides on no others."""
        snapshot = self.read()
        return replace(snapshot, workers=tuple(w for w in snapshot.workers if w.engine == self._engine))


def configured_policy(warn: Callable[[str], None]) -> tuple[Decide, float | None]:
    """See `tolerant_policy`."""
    return tolerant_policy(read_configuration().policy, warn)


def tolerant_policy(name: str, warn: Callable[[str], None]) -> tuple[Decide, float | None]:
    """The decision of a new instance of a policy on a snapshot, and the policy's period in seconds.

    When the policy raises an error, the priority policy replaces it for this and all later decisions, as in the
    scheduler.

    :param warn: gets a line of text when that happens
    """
    policy = load_policy(name)

    def decide_active(snapshot: Snapshot, now: datetime) -> Plan:
        nonlocal policy
        try:
            return policy.decide(snapshot, now)
        except HeteroError:
            raise
        except Exception as error:  # noqa: BLE001  a policy from another package may raise anything
            warn(f"The policy {name} raised {type(error).__name__}: {error}. As in the scheduler, priority decides.")
            policy = load_policy("priority")
            return policy.decide(snapshot, now)

    return partial(decide_without_paused, decide_active), period_of(policy)


def placed_requests(engine: Engine, ids: Iterable[str]) -> dict[str, PendingRequest]:
    """The requests with these ids that the store knows, by id. A lease knows only the id of its request.

    :raises StoreUnavailable: the database is down, locked or not migrated
    """
    with read_transaction(engine) as connection:
        rows = list(read_chunks(connection, select(tables.request), tables.request.c.id, ids))
    requests = (read_pending(row, DeviceRequest.model_validate_json) for row in rows)
    return {pending.id: pending for pending in requests if pending is not None}
