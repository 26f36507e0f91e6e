"""Watches the health of devices: takes sick ones out of scheduling, and lets them back in.

What counts, and for how long, is decided in `hetero_airflow.health.transitions`; what is remembered is in the store,
which every scheduler reads and changes. So each may judge what it hears of any worker's devices, and one that starts
anew goes on where the one before stood. Only a device's own host can try it: this one's are tried by `HostHealth`,
those of another scheduler's host wait for that one, and a device of any other host is trusted untested after its
quarantine,
once no task is on it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Protocol

from hetero_airflow.clock import Periods
from hetero_airflow.discovery.health.burn_in import BurnInOutcome, BurnInResult
from hetero_airflow.executor.device_health.host_health import HostHealth
from hetero_airflow.health.error_classes import ErrorClass, classify_xid
from hetero_airflow.health.transitions import ObservedError, after_time, burn_in_change, error_changes, time_change
from hetero_airflow.model.device import SICK_KEY
from hetero_airflow.model.device_health import NO_ERRORS, DeviceHealth, HealthState
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.recovery.failure import Failure, FailureClass
from hetero_airflow.store.store import History, Store, StoreEvent

log = logging.getLogger(__name__)

_XID = re.compile(r"\bxid (?:\([^)]{1,40}\): )?(\d{1,4})\b(?:[^;]{0,80}? on ([^\s;]+))?", re.IGNORECASE)
_FORGIVING_S = 3600.0


class HealthStore(Store, History, Protocol):
    """A store with its history."""


class HealthWatch:
    """The devices of all workers. While none is out and nothing is heard, the store is read once an hour.

    :param host: what this host says of its own devices
    """

    def __init__(self, store: HealthStore, host: HostHealth) -> None:
        self._store, self.host = store, host
        self._news: list[StoreEvent] = []
        self._bars: dict[tuple[str, str], Hold] = {}
        """(worker id, device id) → bar, of the devices that were out when last looked."""
        self._known: dict[tuple[str, str], DeviceHealth] = {}
        """What the store remembered then."""
        self._periods = Periods(forgiving=_FORGIVING_S)

    def report(self, failure: Failure, task: str) -> None:
        """Take note of a task's failure; only one of the hardware says something of its devices.

        :param task: what counts as one witness, however often it fails: the DAG's and the task's id
        """
        if failure.failure_class is FailureClass.HARDWARE and failure.worker is not None:
            self._news += error_changes(failure.worker, _errors_of(failure, task))

    def step(self, now: datetime) -> None:
        """One round, at each heartbeat: what was heard, what time changed, what a burn-in found, what is tried next.

        :raises StoreUnavailable: nothing is forgotten; the next round tries again
        """
        own = self.host.worker_id
        self._news += error_changes(own, self.host.take_errors())
        ended = self.host.take_burn_in_result()
        if ended is not None:
            device_id, result = ended
            _log_burn_in(device_id, result)
            failure = f"burn-in: {result.found}" if result.outcome is BurnInOutcome.FAILED else ""
            self._news.append(burn_in_change(own, device_id, failure, now))
        self._look()
        events = [*self._news, *self._due(now)]
        if events:
            self._store.record(events, now)
            self._news.clear()
            self._look()
        due = [device_id for worker_id, device_id in self._on_probation() if worker_id == own]
        self.host.start_burn_in(due, self._store.snapshot())

    def close(self) -> None:
        """End what runs beside."""
        self.host.close()

    def _look(self) -> None:
        """Read what is remembered, if the devices that are out are others than before, or out for something else."""
        snapshot = self._store.snapshot()
        bars = {(bar.worker_id, bar.device_id): bar for bar in snapshot.holds if bar.kind is HoldKind.QUARANTINED}
        if bars == self._bars:
            return
        known = self._store.health()
        of_schedulers = {worker.id for worker in snapshot.workers if worker.is_scheduler_host}
        for key in sorted(bars.keys() | self._bars.keys()):
            if bars.get(key) != self._bars.get(key):
                _log_state(*key, known.get(key, NO_ERRORS), was_tried=key[0] in of_schedulers)
        self._bars, self._known = bars, {key: known[key] for key in bars if key in known}

    def _due(self, now: datetime) -> Iterator[StoreEvent]:
        """What time changes: quarantines that are over, probations that nobody can end, errors that count no more."""
        known = self._store.health() if self._periods.is_due("forgiving", now) else self._known
        yield from (time_change(*key, now) for key, health in known.items() if after_time(health, now) != health)
        on_probation = self._on_probation()
        if on_probation:
            untried = _untestable_devices(self._store.snapshot())
            yield from (burn_in_change(*key, "", now) for key in on_probation if key in untried)

    def _on_probation(self) -> list[tuple[str, str]]:
        return [key for key, health in self._known.items() if health.state is HealthState.PROBATION]


def _errors_of(failure: Failure, task: str) -> list[ObservedError]:
    only = failure.device_ids[0] if len(failure.device_ids) == 1 else None
    xids = [(xid[2] if xid[2] in failure.device_ids else only, int(xid[1])) for xid in _XID.finditer(failure.evidence)]
    told = [(device_id, *classify_xid(xid)) for device_id, xid in xids if device_id is not None]
    fatal = [ObservedError(one, kind, text, failure.at) for one, kind, text in told if kind is ErrorClass.FATAL]
    if fatal:
        return fatal
    text = f"tasks failed on it: {failure.evidence}"
    return [ObservedError(one, ErrorClass.TASK, text, failure.at, task) for one in failure.device_ids]


def _untestable_devices(snapshot: Snapshot) -> set[tuple[str, str]]:
    """(worker id, device id) of the devices on whose hosts no scheduler runs.

    Without those that a probe finds sick, and those on which a task still is: it may be failing just now.
    """
    waiting = {
        (worker.id, device_id)
        for worker in snapshot.workers
        for device in worker.devices
        if device.details.get(SICK_KEY) or snapshot.used(worker.id, device.id).share_milli
        for device_id in (device.id, device.parent)
    }
    others = (worker for worker in snapshot.workers if not worker.is_scheduler_host)
    return {(worker.id, device.id) for worker in others for device in worker.devices} - waiting


def _log_burn_in(device_id: str, result: BurnInResult) -> None:
    if result.outcome is BurnInOutcome.UNTESTED:
        log.warning("Device %s could not be tried, so it is trusted untested: %s.", device_id, result.found)
    elif result.outcome is BurnInOutcome.PASSED:
        done = ", ".join(f"{check.name} {check.throughput:.3g}/s" for check in result.checks)
        log.info("Device %s passed its burn-in on %s: %s.", device_id, result.device, done)


def _log_state(worker_id: str, device_id: str, health: DeviceHealth, *, was_tried: bool) -> None:
    name = f"{worker_id}/{device_id}"
    if health.state is HealthState.QUARANTINED:
        log.warning("Device %s is quarantined until %s: %s.", name, health.until, health.cause)
    elif health.state is HealthState.RETIRED:
        log.error("Device %s was out %s times, now for good: %s.", name, health.strikes, health.cause)
    elif health == NO_ERRORS:
        log.info("Device %s was undrained by a person: it is trusted again.", name)
    elif health.state is HealthState.HEALTHY and was_tried:
        log.info("Device %s is trusted again.", name)
    elif health.state is HealthState.HEALTHY:
        log.warning("Device %s can't be tried from here, so it is trusted untested after %s.", name, health.cause)
