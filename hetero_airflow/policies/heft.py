"""Heterogeneous earliest finish time: the task that most hangs on goes first, to where it is done soonest."""

from __future__ import annotations

from collections.abc import Iterable

from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.class_assignment.earliest_finish import EarliestFinish
from hetero_airflow.policies.class_assignment.upward_rank import UpwardRanks


class Heft(EarliestFinish):
    """The higher class first, then the greatest upward rank, whatever the DAG run: for the least makespan.

    Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002; see `UpwardRanks` and `EarliestFinish` for the deviations.
    Where many DAG runs compete, short ones wait long: `critical_path` is made for them.
    """

    def __init__(self) -> None:
        super().__init__("heft", self._by_rank)
        self._ranks = UpwardRanks()

    def _by_rank(self, pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
        ranks, known = self._ranks, snapshot.estimates
        return sorted(pending, key=lambda p: (p.request.priority.rank, -ranks.of(p.task, known), p.submitted_at, p.id))
