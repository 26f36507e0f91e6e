"""Heterogeneous earliest finish time: the task on which the most depends goes first, to where it finishes earliest."""

from __future__ import annotations

from collections.abc import Iterable

from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.class_assignment.earliest_finish import EarliestFinish
from hetero_airflow.policies.class_assignment.upward_rank import UpwardRanks


class Heft(EarliestFinish):
    """The higher class first, then the greatest upward rank of all DAG runs, for the least makespan.

    Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002; `UpwardRanks` and `EarliestFinish` state the deviations. Where many
    DAG runs compete, short ones wait long; `critical_path` is made for that.
    """

    def __init__(self) -> None:
        super().__init__("heft", self._by_rank)
        self._ranks = UpwardRanks()

    def _by_rank(self, pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
        rank_s, estimates = self._ranks.rank_s, snapshot.estimates
        return sorted(
            pending, key=lambda p: (p.request.priority.rank, -rank_s(p.task, estimates), p.submitted_at, p.id)
        )
