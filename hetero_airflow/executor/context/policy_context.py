"""All that a policy is told beside what the store holds: what runs taught, what DAGs look like, what is configured."""

from __future__ import annotations

from dataclasses import replace

from hetero_airflow.executor.context.dag_edges import DagEdges, Edges
from hetero_airflow.executor.context.site_links import SiteLinks
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.team_shares import TeamShares
from hetero_airflow.scheduling.learning.learner import Learner, device_classes
from hetero_airflow.store.sql.store import SqlStore


class PolicyContext:
    """Keeps `Estimates` up to date."""

    def __init__(self, store: SqlStore, shares: TeamShares, dags: DagEdges, links: SiteLinks) -> None:
        self._store = store
        self._dags = dags
        self._links = links
        self._edges: Edges = {}
        self._learner = Learner()
        self._learned: Estimates | None = None
        self.estimates = Estimates(shares=shares)
        """As of the last `refresh`; the same object while nothing new is known."""

    def learn(self) -> None:
        """Take in what ended runs say of speeds and durations, and what data sheets say of the devices there are.

        :raises StoreUnavailable: the database is down
        """
        self._take_in(self._learner.refresh(self._store, device_classes(self._store.snapshot().workers)), self._edges)

    def refresh(self) -> None:
        """Learn, and read the DAGs of the requests that wait or run.

        :raises StoreUnavailable: the database is down
        """
        snapshot = self._store.snapshot()
        learned = self._learner.refresh(self._store, device_classes(snapshot.workers))
        dag_ids = {one.dag_id for one in (*snapshot.pending, *snapshot.holders.values())}
        self._take_in(learned, self._dags.refresh(dag_ids))

    def _take_in(self, learned: Estimates, edges: Edges) -> None:
        if learned is not self._learned or edges is not self._edges:
            self._learned, self._edges = learned, edges
            self.estimates = replace(learned, edges=edges, shares=self.estimates.shares)

    def add_to(self, snapshot: Snapshot, min_run_s: float) -> Snapshot:
        """A snapshot with what policies are told besides: estimates, links of sites, what may be taken from whom."""
        workers = self._links.labelled(snapshot.workers)
        return replace(snapshot, workers=workers, estimates=self.estimates, protects_unsaved=True, min_run_s=min_run_s)
