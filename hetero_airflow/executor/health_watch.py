"""Watches the health of this host's devices: takes sick ones out of scheduling, tries them, and lets them back in.

What counts, and for how long, is decided in `hetero_airflow.recovery.health`; what is remembered is in the store, so a
scheduler that starts anew goes on where the one before stood.
"""

from __future__ import annotations

import logging
import re
from datetime import datetime
from typing import Protocol

from hetero_airflow.discovery.burn_in import BurnInResult, Outcome
from hetero_airflow.discovery.xid_watch import XidWatch
from hetero_airflow.executor.burn_in_runs import BurnInRuns
from hetero_airflow.model.bar import BarKind, bars_on
from hetero_airflow.model.device import SICK, Device
from hetero_airflow.model.health import WELL, Health, HealthState
from hetero_airflow.model.snapshot import Usage
from hetero_airflow.model.worker import Inventory
from hetero_airflow.recovery.failure import Failure, FailureClass
from hetero_airflow.recovery.health import ErrorSeen, after_burn_in, after_error, after_time, bar_of
from hetero_airflow.recovery.xids import ErrorClass, classify_xid
from hetero_airflow.store.store import DeviceBarred, DeviceCleared, Event, HealthNoted, History, Store

log = logging.getLogger(__name__)

_XID = re.compile(r"\bxid (?:\([^)]{1,40}\): )?(\d{1,4})\b(?: on (\S+))?", re.IGNORECASE)


class HealthStore(Store, History, Protocol):
    """A store with its history."""


class HealthWatch:
    """One host's devices. Nothing here blocks but the store, and that only when something is to be noted.

    :param worker_id: of this host
    """

    def __init__(self, store: HealthStore, worker_id: str, xids: XidWatch | None = None) -> None:
        self._store, self._worker_id = store, worker_id
        self._xids = xids or XidWatch()
        self._known: dict[str, Health] | None = None
        """Device id → health, of those that are not `WELL`; None before the store was asked."""
        self._news: list[ErrorSeen] = []
        self._devices: dict[str, Device] = {}
        """As the last inventory found them: without what bars say."""
        self._ecc_errors: dict[str, int] = {}
        self._runs: BurnInRuns | None = None
        self._result: tuple[str, BurnInResult] | None = None

    def take_inventory(self, inventory: Inventory, now: datetime) -> None:
        """Take note of what a discovery found; touches neither the store nor a device."""
        before, self._devices = self._devices, {device.id: device for device in inventory.worker.devices}
        for device in inventory.worker.devices:
            is_news = device.id not in before or not before[device.id].details.get(SICK)
            if device.details.get(SICK) and is_news and device.parent is None:
                self._news.append(ErrorSeen(device.id, ErrorClass.FATAL, device.problem or "its driver says so", now))
        for reading in inventory.telemetry:
            if reading.ecc_errors is None:
                continue
            more = reading.ecc_errors - self._ecc_errors.get(reading.device_id, reading.ecc_errors)
            self._ecc_errors[reading.device_id] = reading.ecc_errors
            if more > 0:
                text = f"{more} uncorrected ECC error{'s' if more > 1 else ''}"
                self._news.append(ErrorSeen(reading.device_id, ErrorClass.FATAL, text, now))

    def report(self, failure: Failure, task: str) -> None:
        """Take note of a task's failure on this host; only one of the hardware says something of its devices.

        :param task: what counts as one witness, however often it fails: the DAG's and the task's id
        """
        if failure.failure_class is not FailureClass.HARDWARE or failure.worker not in (None, self._worker_id):
            return
        xid = _XID.search(failure.evidence)
        named = [one for one in failure.device_ids if xid is not None and one == xid[2]]
        one = named or (failure.device_ids if len(failure.device_ids) == 1 else ())
        if xid is not None and one and classify_xid(int(xid[1]))[0] is ErrorClass.FATAL:
            self._news.append(ErrorSeen(one[0], ErrorClass.FATAL, classify_xid(int(xid[1]))[1], failure.at))
            return
        text = f"tasks failed on it: {failure.evidence}"
        self._news += [ErrorSeen(one, ErrorClass.TASK, text, failure.at, task) for one in failure.device_ids]

    def step(self, now: datetime) -> None:
        """One round, at each heartbeat: what was heard, what time changed, what a burn-in found, what is tried next.

        :raises StoreUnavailable: nothing is forgotten; the next round tries again
        """
        if any(device.vendor == "nvidia" and not device.simulated for device in self._devices.values()):
            for seen in self._xids.poll():
                self._news.append(ErrorSeen(seen.uuid, *classify_xid(seen.xid), seen.at))
        if self._known is None:
            mine = self._store.health().items()
            self._known = {device_id: health for (worker_id, device_id), health in mine if worker_id == self._worker_id}
        if self._runs is not None and self._result is None:
            result = self._runs.poll()
            self._result = None if result is None else (self._runs.device_id, result)
        if self._known:
            self._forget_undrained(self._known)
        self._note(self._known, self._changes(self._known, now), now)
        self._news.clear()
        if self._result is not None:
            _log_burn_in(*self._result)
            self._runs = self._result = None
        if self._runs is None:
            self._begin_burn_in(self._known)

    def close(self) -> None:
        """End what runs beside."""
        self._xids.close()
        if self._runs is not None:
            self._runs.close()

    def _forget_undrained(self, known: dict[str, Health]) -> None:
        """A device whose bar is gone was undrained by a person, who has cleared its record in the store too."""
        barred = {
            bar.device_id
            for bar in self._store.snapshot().bars
            if bar.worker_id == self._worker_id and bar.kind is BarKind.QUARANTINED
        }
        is_seen = any(worker.id == self._worker_id for worker in self._store.snapshot().workers)
        for device_id, health in list(known.items()):
            if is_seen and health.state is not HealthState.HEALTHY and device_id not in barred:
                log.info("Device %s was undrained by a person: it is trusted again.", device_id)
                del known[device_id]
                if self._runs is not None and self._runs.device_id == device_id:
                    self._runs.close()
                    self._runs = self._result = None

    def _changes(self, known: dict[str, Health], now: datetime) -> dict[str, Health]:
        """Device id → its health now, of those whose health is another."""
        after = {device_id: after_time(health, now) for device_id, health in known.items()}
        if self._result is not None:
            device_id, result = self._result
            failure = f"burn-in: {result.found}" if result.outcome is Outcome.FAILED else ""
            after[device_id] = after_burn_in(after.get(device_id, WELL), failure, now)
        for error in self._news:
            after[error.device_id] = after_error(after.get(error.device_id, WELL), error)
        return {key: health for key, health in after.items() if health != known.get(key, WELL)}

    def _note(self, known: dict[str, Health], changes: dict[str, Health], now: datetime) -> None:
        events: list[Event] = []
        for device_id, health in changes.items():
            bar = bar_of(self._worker_id, device_id, health)
            if bar is not None:
                events.append(DeviceBarred(bar))
            elif known.get(device_id, WELL).state is not HealthState.HEALTHY:
                events.append(DeviceCleared(self._worker_id, device_id, BarKind.QUARANTINED))
            events.append(HealthNoted(self._worker_id, device_id, health))
        if events:
            self._store.record(events, now)
        for device_id, health in changes.items():
            before = known.get(device_id, WELL)
            if health.state is not before.state:
                _log_state(device_id, health)
            known[device_id] = health
            if health == WELL:
                del known[device_id]

    def _begin_burn_in(self, known: dict[str, Health]) -> None:
        """Try the first device that is on probation, here, seen well by its probe, unused and not drained."""
        due = [device_id for device_id, health in known.items() if health.state is HealthState.PROBATION]
        if not due:
            return
        snapshot = self._store.snapshot()
        drained = [bar for bar in snapshot.bars if bar.worker_id == self._worker_id and bar.kind is BarKind.DRAINED]
        for device_id in due:
            parts = [device for device in self._devices.values() if device.parent == device_id]
            own = self._devices.get(device_id)
            targets = parts or ([own] if own is not None else [])
            if (
                targets
                and all(device.leasable and not bars_on(device, drained) for device in targets)
                and not any(_is_used(snapshot.used(self._worker_id, device.id)) for device in targets)
            ):
                log.info("Device %s: a burn-in begins.", device_id)
                self._runs = BurnInRuns(device_id, targets, self._worker_id)
                return


def _is_used(usage: Usage) -> bool:
    return bool(usage.milli or usage.memory_bytes)


def _log_burn_in(device_id: str, result: BurnInResult) -> None:
    if result.outcome is Outcome.UNTESTED:
        log.warning("Device %s could not be tried, so it is trusted untested: %s.", device_id, result.found)
    elif result.outcome is Outcome.PASSED:
        done = ", ".join(f"{check.name} {check.throughput:.3g}/s" for check in result.checks)
        log.info("Device %s passed its burn-in on %s: %s.", device_id, result.device, done)


def _log_state(device_id: str, health: Health) -> None:
    if health.state is HealthState.QUARANTINED:
        log.warning("Device %s is quarantined until %s: %s.", device_id, health.until, health.cause)
    elif health.state is HealthState.RETIRED:
        log.error("Device %s was out %s times, now for good: %s.", device_id, health.strikes, health.cause)
    elif health.state is HealthState.HEALTHY:
        log.info("Device %s is trusted again.", device_id)
