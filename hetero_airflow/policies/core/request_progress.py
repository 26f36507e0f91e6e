"""How far a request has come: its attained service, and how long it will still take."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from hetero_airflow.model.estimates import MAX_DURATION_S, Estimates
from hetero_airflow.model.snapshot import PendingRequest


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """A request at one moment, whether it waits or runs."""

    pending: PendingRequest
    attained_service_s: Mapping[str, float]
    """Device class → seconds for which it has held its devices there, including the current run."""

    @property
    def total_service_s(self) -> float:
        """Seconds for which it has held its devices."""
        return sum(self.attained_service_s.values())


def waiting_progress(pending: PendingRequest) -> RequestProgress:
    """The progress of a request that waits."""
    return RequestProgress(pending, pending.attained_service_s)


def running_progress(
    pending: PendingRequest, device_class: str, granted_at: datetime, now: datetime
) -> RequestProgress:
    """The progress of a request that has held devices of a class since `granted_at`."""
    held_s = max(0.0, (now - granted_at).total_seconds())
    service_s = {**pending.attained_service_s, device_class: pending.attained_service_s.get(device_class, 0.0) + held_s}
    return RequestProgress(pending, service_s)


def remaining_s(progress: RequestProgress, estimates: Estimates) -> float | None:
    """Expected seconds that the run still needs on the fastest class with a known speed; None: unknown.

    A run that is overdue is expected to take as long again as it is overdue already.

    >>> from hetero_airflow.model.estimates import Interval
    >>> from hetero_airflow.testing import a_pending
    >>> known = Estimates({("dag", "a"): {"nvidia/v100": 2.0, "nvidia/k80": 1.0}}, {("dag", "a"): Interval(50, 60, 90)})
    >>> runs = [RequestProgress(a_pending("a"), {"nvidia/k80": held_s}) for held_s in (0, 40, 70)]
    >>> [remaining_s(run, known) for run in runs]
    [30.0, 10.0, 5.0]
    >>> remaining_s(RequestProgress(a_pending("b"), {}), known) is None
    True
    """
    task = progress.pending.task
    top = estimates.top_speed(task)
    if top is None or task not in estimates.works:
        return None
    done = sum(seconds * (estimates.speed(task, name) or 0.0) for name, seconds in progress.attained_service_s.items())
    return min(abs(estimates.works[task].middle - done) / top, MAX_DURATION_S)
