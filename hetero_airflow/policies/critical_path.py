"""By the critical paths of DAGs: the shortest DAG goes first, and in it the task on which the most depends."""

from collections.abc import Iterable

from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.class_assignment.earliest_finish import EarliestFinish
from hetero_airflow.policies.class_assignment.upward_rank import UpwardRanks


class CriticalPath(EarliestFinish):
    """The higher class first, then the DAG with the shortest critical path, in a run of it the greatest upward rank.

    So DAG runs are served shortest first, for the least mean time until they end. The tasks of a run are ordered by
    the longest path to its end (highest level first: Adam, Chandy and Dickson, CACM 17(12), 1974). Runs of one DAG go
    in the order of their ids, which begin with the kind of the run and end with a time; shorter ids first. Each request
    goes to where it is expected to finish earliest, see `EarliestFinish`.
    """

    def __init__(self) -> None:
        super().__init__("critical_path", self._by_path)
        self._ranks = UpwardRanks()

    def _by_path(self, pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
        ranks, estimates = self._ranks, snapshot.estimates
        return sorted(
            pending,
            key=lambda p: (
                p.request.priority.rank, ranks.path_s(p.task, estimates), p.dag_id, len(p.run_id), p.run_id,
                -ranks.rank_s(p.task, estimates), p.submitted_at, p.id,
            ),
        )  # fmt: skip
