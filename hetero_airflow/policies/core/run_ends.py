"""When running tasks are expected to end. Pure.

By the middle and the high estimate of the work (`Estimates.works`), or by a report of the task. A run that has taken
longer than that is expected to last as long as other such runs did.

The end of a run about which nothing is known is guessed: after the mean of the runs that have ended (`USUAL_RUN_S`
before `ENOUGH_RUNS` have), or after as long again as it has taken if that is longer.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from hetero_airflow.matching.shapes import WorkerEntry
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.device import device_class
from hetero_airflow.model.estimates import Estimates, TaskName
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.run import usual_restart_s
from hetero_airflow.model.snapshot import PendingRequest, Snapshot

USUAL_RUN_S = 4 * 3600.0
"""The assumed mean run on the fastest class, until `ENOUGH_RUNS` have ended."""

ENOUGH_RUNS = 20


class ExpectedEnd(NamedTuple):
    """Seconds from now until a run ends."""

    middle_s: float
    high_s: float
    is_known: bool
    """False: both are the mean of a guess."""


def usual_run_s(estimates: Estimates) -> float:
    """The mean of the runs that have ended, on the fastest class."""
    ended = estimates.finished_s
    return sum(ended) / len(ended) if len(ended) >= ENOUGH_RUNS else USUAL_RUN_S


def durations_s(estimates: Estimates, pending: PendingRequest, device_class: str) -> tuple[float, float]:
    """How long a request that starts now runs, restart included, by the middle and the high estimate; else infinite."""
    work, speed = estimates.works.get(pending.task), estimates.speed(pending.task, device_class)
    if work is None or not speed:
        return math.inf, math.inf
    if not pending.attained_service_s:
        return max(work.middle, 0.0) / speed, max(work.high, 0.0) / speed
    done = math.fsum(
        seconds * (estimates.speed(pending.task, name) or 0.0) for name, seconds in pending.attained_service_s.items()
    )
    restart_s = usual_restart_s(pending.gang_size * pending.request.alternatives[0].count)
    return max(work.middle - done, 0.0) / speed + restart_s, max(work.high - done, 0.0) / speed + restart_s


def run_ends(snapshot: Snapshot, index: WorkerIndex, now: datetime) -> Mapping[str, ExpectedEnd]:
    """Lease id → when its run ends, together for a gang. A lease that has ended, or that is about to, is absent."""
    forecast = _EndForecast(snapshot.estimates, now)
    ends: dict[str, ExpectedEnd] = {}
    gangs: defaultdict[str, list[str]] = defaultdict(list)
    for lease in snapshot.leases:
        holder, number = snapshot.holders.get(lease.request_id), index.numbers.get(lease.worker_id)
        if holder is None or number is None or lease.state in (LeaseState.EXPIRED, LeaseState.PREEMPTED):
            continue
        ends[lease.id] = forecast.end(lease, holder, _leased_class(lease, index.entries[number]))
        if holder.gang:
            gangs[holder.gang].append(lease.id)
    for members in gangs.values():
        last = max((ends[member] for member in members), key=lambda end: (not end.is_known, end.high_s))
        ends |= dict.fromkeys(members, last)
    return ends


class _EndForecast:
    def __init__(self, estimates: Estimates, now: datetime) -> None:
        self._estimates, self._now = estimates, now
        self._usual_s = usual_run_s(estimates)
        self._durations: dict[tuple[TaskName, str], tuple[float, float]] = {}
        """Of runs that began anew."""

    def end(self, lease: Lease, holder: PendingRequest, name: str | None) -> ExpectedEnd:
        """When the run of a lease ends.

        :param name: its device class; None: the worker no longer has the device
        """
        held_s = max((self._now - lease.granted_at).total_seconds(), 0.0)
        middle_s = high_s = math.inf
        if name is not None:
            middle_s, high_s = (duration - held_s for duration in self._durations_s(holder, name))
            is_reported = lease.id in self._estimates.reported_ends
            if middle_s <= 0 or is_reported:
                before = holder.attained_service_s
                more = self._estimates.lease_remaining_s(lease.id, holder.task, name, held_s, before, self._now)
                middle_s = math.inf if more is None else more.middle
                if high_s <= 0 or is_reported:
                    high_s = math.inf if more is None else more.high
        if middle_s < math.inf and high_s < math.inf:
            return ExpectedEnd(middle_s, max(middle_s, high_s), True)
        guess_s = max(self._usual_s, held_s)
        return ExpectedEnd(guess_s, guess_s, False)

    def _durations_s(self, holder: PendingRequest, name: str) -> tuple[float, float]:
        if holder.attained_service_s:
            return durations_s(self._estimates, holder, name)
        found = self._durations.get((holder.task, name))
        if found is None:
            found = self._durations[holder.task, name] = durations_s(self._estimates, holder, name)
        return found


def _leased_class(lease: Lease, entry: WorkerEntry) -> str | None:
    """The class of the first accelerator of a lease, or of its CPU; None if the worker no longer has it."""
    cpu = None
    for claim in lease.claims:
        position = entry.position.get(claim.device_id)
        if position is not None:
            device = entry.shape.devices[position]
            if device.kind != "cpu":
                return device_class(device)
            cpu = device
    return None if cpu is None else device_class(cpu)
