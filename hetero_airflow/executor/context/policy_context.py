"""The policy context: what is learned from runs, the edges of DAGs, cached data, and what is configured."""

from collections.abc import Mapping
from dataclasses import replace

from hetero_airflow.executor.configuration import Configuration
from hetero_airflow.executor.context.dag_edges import DagEdges, Edges
from hetero_airflow.executor.context.site_links import SiteLinks
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.scheduling.learning.learner import Learner, device_classes
from hetero_airflow.store.sql.store import SqlStore


class PolicyContext:
    """Keeps the estimates up to date, and adds them and what is configured to snapshots."""

    def __init__(self, store: SqlStore, configuration: Configuration, dags: DagEdges) -> None:
        self._store = store
        self._configuration = configuration
        self._dags = dags
        self._links = SiteLinks(configuration.site_links)
        self._edges: Edges = {}
        self._learner = Learner()
        self._learned: Estimates | None = None
        self._held_data: Mapping[str, Mapping[str, int]] = {}
        self.estimates = Estimates(shares=configuration.shares)
        """As of the last `learn` or `refresh`; the same object while nothing changes."""

    def learn(self) -> None:
        """Learn speeds and durations from ended runs, and from the data sheets of the present devices.

        :raises StoreUnavailable: the database is down
        """
        self._update(self._learner.refresh(self._store, device_classes(self._store.snapshot().workers)), self._edges)

    def refresh(self) -> None:
        """Learn, and read the caches of hosts and the DAGs of the waiting and running requests.

        :raises StoreUnavailable: the database is down
        """
        snapshot = self._store.snapshot()
        learned = self._learner.refresh(self._store, device_classes(snapshot.workers))
        dag_ids = {request.dag_id for request in (*snapshot.pending, *snapshot.holders.values())}
        self._update(learned, self._dags.refresh(dag_ids))
        self.read_data()

    def read_data(self) -> None:
        """Read what the caches of hosts hold.

        :raises StoreUnavailable: the database is down
        """
        self._held_data = {worker_id: data.held for worker_id, data in self._store.host_data().items() if data.held}

    def _update(self, learned: Estimates, edges: Edges) -> None:
        if learned is not self._learned or edges is not self._edges:
            self._learned, self._edges = learned, edges
            self.estimates = replace(learned, edges=edges, shares=self.estimates.shares)

    def add_to(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the policy context: estimates, site links, and which leases may be preempted."""
        return replace(
            snapshot,
            workers=self._links.labelled(snapshot.workers),
            estimates=self.estimates,
            protects_unsaved=True,
            min_run_s=self._configuration.min_run_s,
            preempts_within_class=self._configuration.preempt_within_class,
            patience=self._configuration.patience,
            held_data=self._held_data,
        )
