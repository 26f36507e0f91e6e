"""Policies of the literature that the package does not offer; the benchmarks compare with them.

Where leases can be taken back, nothing is reserved for the head of their queue: it takes back in its turn whatever
later requests got.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial

from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.estimates import MAX_DURATION_S, Estimates
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.class_assignment.candidates import Candidate
from hetero_airflow.policies.class_assignment.earliest_finish import EarliestFinish
from hetero_airflow.policies.class_assignment.upward_rank import UpwardRanks
from hetero_airflow.policies.class_assignment.weighted_assignment import WeightedAssignment
from hetero_airflow.policies.core.backfill import HeadReservation
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.preemption import PreemptionRules, Rank
from hetero_airflow.policies.core.preemption_plan import LeastLossPreemption
from hetero_airflow.policies.core.queue_order import by_age
from hetero_airflow.policies.core.request_progress import RequestProgress, remaining_s, waiting_progress

QUANTUM_S = 1800.0
"""For how long a request keeps its devices under `Las`: equal requests take turns, and each turn costs a restart."""


class NoReservations(HeadReservation):
    """Place each request that fits. As in the scheduler of Kubernetes, large requests can wait for ever."""

    def note_waiting(self, unit: Sequence[PendingRequest]) -> None:
        """Reserves nothing."""


def _reservations(index: WorkerIndex, snapshot: Snapshot, now: datetime) -> HeadReservation:
    return (NoReservations if snapshot.can_preempt else HeadReservation)(index, snapshot, now)


class RankedPolicy(ListPolicy):
    """The smallest rank first, then the older request; tight placement, backfill.

    :param rules: which leases are taken back, where the engine can; None: no leases
    """

    def __init__(
        self, name: str, rank: Callable[[RequestProgress, Estimates], Rank], rules: PreemptionRules | None = None
    ) -> None:
        reservations = HeadReservation if rules is None else _reservations
        preemption = None if rules is None else partial(LeastLossPreemption, name, rules)
        super().__init__(name, by_age, TightFitScorer(), reservations=reservations, preemption=preemption)
        self._rank = rank

    def _plan(self, snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Plan:
        def order(pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
            estimates = snapshot.estimates
            ranks = {request.id: self._rank(waiting_progress(request), estimates) for request in pending}
            return sorted(pending, key=lambda request: (ranks[request.id], request.submitted_at, request.id))

        return self._schedule(snapshot, index, order, self._may_overtake, now)


class Sjf(RankedPolicy):
    """Shortest job first: by estimate, then those of unknown length by age; nothing is preempted."""

    def __init__(self) -> None:
        super().__init__("sjf", _length)


class Srtf(RankedPolicy):
    """Shortest remaining time first, then those of unknown length; takes back running work of known length.

    Of runs of unknown length, the one goes first that would have the least left if it were of typical length.

    Schrage 1968 shows that this is optimal for the mean time in the system on one machine with free preemption.
    """

    def __init__(self, min_run_s: float | None = None) -> None:
        super().__init__("srtf", _remaining_order, PreemptionRules(_remaining, min_run_s))


class Srsf(RankedPolicy):
    """Shortest remaining service first: as `Srtf`, by remaining time × devices.

    Tiresias (NSDI 2019, section 3.1) and Muri (SIGCOMM 2022, section 6) compare with this rule where lengths are known:
    SRTF lets a short job on many devices go before many small ones.
    """

    def __init__(self, min_run_s: float | None = None) -> None:
        super().__init__("srsf", _service_order, PreemptionRules(_remaining_service, min_run_s))


class Las(RankedPolicy):
    """The least attained devices × time first, and running work is taken back for it.

    Two-dimensional least attained service without the queues of Tiresias (Gu et al., NSDI 2019, section 3.2). Time
    counts alike on all classes of devices.
    """

    period_s = QUANTUM_S
    """The ranks change while work runs."""

    def __init__(self) -> None:
        super().__init__("las", _attained, PreemptionRules(_attained, QUANTUM_S))


class Heft(EarliestFinish):
    """The higher class first, then the greatest upward rank of all DAG runs, for the least makespan.

    Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002; `UpwardRanks` and `EarliestFinish` state the deviations. Where many
    DAG runs compete, short ones wait long.
    """

    def __init__(self) -> None:
        super().__init__("heft", self._by_rank)
        self._ranks = UpwardRanks()

    def _by_rank(self, pending: Iterable[PendingRequest], snapshot: Snapshot) -> list[PendingRequest]:
        rank_s, estimates = self._ranks.rank_s, snapshot.estimates
        return sorted(
            pending, key=lambda p: (p.request.priority.rank, -rank_s(p.task, estimates), p.submitted_at, p.id)
        )


class LoadBalance(WeightedAssignment):
    """The request that can complete earliest runs where it completes earliest, by known durations.

    The weight of a request is the part of its remaining work that it does in a second. An unknown run that has run long
    is expected to run long.
    """

    def __init__(self) -> None:
        super().__init__("load_balance", _part_per_second, exponent=1.0)


BASELINES: dict[str, Callable[[], ListPolicy]] = {
    "sjf": Sjf, "srtf": Srtf, "srsf": Srsf, "las": Las, "heft": Heft, "load_balance": LoadBalance
}  # fmt: skip


def _length(progress: RequestProgress, estimates: Estimates) -> Rank:
    task = progress.pending.task
    top = estimates.top_speed(task)
    if top is None or task not in estimates.works:
        return 1.0, 0.0
    return 0.0, min(max(estimates.works[task].middle / top, 0.0), MAX_DURATION_S)


def _devices(progress: RequestProgress) -> float:
    """How many devices the request takes; for a gang, how many the whole gang takes."""
    return progress.pending.request.alternatives[0].devices * progress.pending.gang_size


def _remaining(progress: RequestProgress, estimates: Estimates) -> Rank | None:
    remaining = remaining_s(progress, estimates)
    return None if remaining is None else (remaining,)


def _remaining_service(progress: RequestProgress, estimates: Estimates) -> Rank | None:
    remaining = remaining_s(progress, estimates)
    return None if remaining is None else (remaining * _devices(progress),)


def _remaining_order(progress: RequestProgress, estimates: Estimates) -> Rank:
    known = _remaining(progress, estimates)
    return (1.0, _missing_s(progress, estimates)) if known is None else (0.0, *known)


def _service_order(progress: RequestProgress, estimates: Estimates) -> Rank:
    known = _remaining_service(progress, estimates)
    return (1.0, _missing_s(progress, estimates) * _devices(progress)) if known is None else (0.0, *known)


def _missing_s(progress: RequestProgress, estimates: Estimates) -> float:
    """How far the attained service is from the median duration of ended runs, 0 if none has ended."""
    finished = estimates.finished_s
    return abs((finished[len(finished) // 2] if finished else 0.0) - progress.total_service_s)


def _attained(progress: RequestProgress, estimates: Estimates) -> Rank:
    return (progress.total_service_s * _devices(progress),)


def _part_per_second(candidate: Candidate, mean_run_s: float) -> float:
    left_s = mean_run_s + candidate.done_s if candidate.left_s is None else candidate.left_s
    return mean_run_s / max(left_s, 1.0)
