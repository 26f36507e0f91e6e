"""Watches the health of devices: takes sick ones out of scheduling, and lets them back in.

The rules are in `hetero_airflow.health.transitions`, and the state is in the store, which every scheduler reads and
changes. So each scheduler may judge the devices of any worker, and a new one continues where the former one stopped.
A burn-in runs only on the device's own host. `HostHealth` runs those of this host, and other schedulers those of their
hosts. A device of any other host is trusted without a burn-in after its quarantine, once no task uses it.
"""

import logging
import re
from collections.abc import Iterator
from datetime import datetime

from hetero_airflow.clock import Periods
from hetero_airflow.discovery.health.burn_in import BurnInOutcome, BurnInResult
from hetero_airflow.executor.device_health.host_health import HostHealth
from hetero_airflow.health.error_classes import ErrorClass, classify_xid
from hetero_airflow.health.transitions import ObservedError, after_time, burn_in_change, error_changes, time_change
from hetero_airflow.model.device import SICK_KEY
from hetero_airflow.model.devices.health import NO_ERRORS, DeviceHealth, HealthState
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.recovery.failure import Failure, FailureClass
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.store import StoreEvent

log = logging.getLogger(__name__)

_XID = re.compile(r"\bxid (?:\([^)]{1,40}\): )?(\d{1,4})\b(?:[^;]{0,80}? on ([^\s;]+))?", re.IGNORECASE)
_FORGET_ERRORS_S = 3600.0


class HealthWatch:
    """Watches the devices of all workers. While all are healthy and no error comes, it reads the store once an hour.

    :param host: the errors and burn-ins of this host's devices
    """

    def __init__(self, store: SqlStore, host: HostHealth) -> None:
        self._store, self.host = store, host
        self._unrecorded: list[StoreEvent] = []
        self._quarantines: dict[tuple[str, str], Hold] = {}
        """(worker id, device id) → hold, of the quarantined devices at the last look."""
        self._health_of: dict[tuple[str, str], DeviceHealth] = {}
        """Their health in the store at that time."""
        self._periods = Periods(forget_errors=_FORGET_ERRORS_S)

    def report(self, failure: Failure, task: str) -> None:
        """Count the failure of a task against its devices, or its worker, if one of them is the cause.

        :param task: ids of the DAG and the task; all its failures count as one witness
        """
        if failure.failure_class in (FailureClass.HARDWARE, FailureClass.WORKER) and failure.worker is not None:
            self._unrecorded += error_changes(failure.worker, _errors_of(failure, task))

    def step(self, now: datetime) -> None:
        """One round: record errors, expired quarantines and burn-in results; start the next burn-in.

        :raises StoreUnavailable: nothing is lost; the next round tries again
        """
        host_id = self.host.worker_id
        self._unrecorded += error_changes(host_id, self.host.take_errors())
        ended = self.host.take_burn_in_result()
        if ended is not None:
            device_id, result = ended
            _log_burn_in(device_id, result)
            failure = f"burn-in: {result.found}" if result.outcome is BurnInOutcome.FAILED else ""
            self._unrecorded.append(burn_in_change(host_id, device_id, failure, now))
        self._refresh()
        events = [*self._unrecorded, *self._due(now)]
        if events:
            self._store.record(events, now)
            self._unrecorded.clear()
            self._refresh()
        due = [device_id for worker_id, device_id in self._on_probation() if worker_id == host_id]
        self.host.start_burn_in(due, self._store.snapshot())

    def close(self) -> None:
        """Stop the burn-in and the watch of the driver."""
        self.host.close()

    def _refresh(self) -> None:
        """Read the devices' health, if other devices are quarantined than before, or for another cause."""
        snapshot = self._store.snapshot()
        quarantined = (hold for hold in snapshot.holds if hold.kind is HoldKind.QUARANTINED)
        holds = {(hold.worker_id, hold.device_id): hold for hold in quarantined}
        if holds == self._quarantines:
            return
        health_of = self._store.health()
        of_schedulers = {worker.id for worker in snapshot.workers if worker.is_scheduler_host}
        for key in sorted(holds.keys() | self._quarantines.keys()):
            if holds.get(key) != self._quarantines.get(key):
                _log_state(*key, health_of.get(key, NO_ERRORS), was_tested=key[0] in of_schedulers)
        self._quarantines = holds
        self._health_of = {key: health_of[key] for key in holds if key in health_of}

    def _due(self, now: datetime) -> Iterator[StoreEvent]:
        """What time changes: the end of quarantines, of probations that no burn-in can end, and of old errors."""
        health_of = self._store.health() if self._periods.is_due("forget_errors", now) else self._health_of
        yield from (time_change(*key, now) for key, health in health_of.items() if after_time(health, now) != health)
        on_probation = self._on_probation()
        if on_probation:
            untestable = _untestable_devices(self._store.snapshot())
            yield from (burn_in_change(*key, "", now) for key in on_probation if key in untestable)

    def _on_probation(self) -> list[tuple[str, str]]:
        return [key for key, health in self._health_of.items() if health.state is HealthState.PROBATION]


def _errors_of(failure: Failure, task: str) -> list[ObservedError]:
    only = failure.device_ids[0] if len(failure.device_ids) == 1 else None
    xids = [(xid[2] if xid[2] in failure.device_ids else only, int(xid[1])) for xid in _XID.finditer(failure.evidence)]
    errors = [(device_id, *classify_xid(xid)) for device_id, xid in xids if device_id is not None]
    fatal = [ObservedError(id_, kind, text, failure.at) for id_, kind, text in errors if kind is ErrorClass.FATAL]
    if fatal:
        return fatal
    text = f"tasks failed on it: {failure.evidence}"
    targets = ("",) if failure.is_of_host else failure.device_ids  # an empty id: the whole worker
    return [ObservedError(id_, ErrorClass.TASK, text, failure.at, task) for id_ in targets]


def _untestable_devices(snapshot: Snapshot) -> set[tuple[str, str]]:
    """(worker id, device id) of the devices that no scheduler can test, since none runs on their hosts any more.

    No burn-in tests a whole worker, whose id stands with an empty one. Without the devices that a probe found sick, and
    those that a task still uses: it may be failing just now.
    """
    excluded = {
        (worker.id, device_id)
        for worker in snapshot.workers
        for device in worker.devices
        if device.details.get(SICK_KEY) or snapshot.used(worker.id, device.id).share_milli
        for device_id in (device.id, device.parent)
    }
    remote = (worker for worker in snapshot.workers if worker.state is WorkerState.LOST or not worker.is_scheduler_host)
    devices = {(worker.id, device.id) for worker in remote for device in worker.devices} - excluded
    return devices | {(worker.id, "") for worker in snapshot.workers}


def _log_burn_in(device_id: str, result: BurnInResult) -> None:
    if result.outcome is BurnInOutcome.UNTESTED:
        log.warning("Device %s can't be tested, so it is trusted without a burn-in: %s.", device_id, result.found)
    elif result.outcome is BurnInOutcome.PASSED:
        done = ", ".join(f"{check.name} {check.throughput:.3g}/s" for check in result.checks)
        log.info("Device %s passed its burn-in on %s: %s.", device_id, result.device, done)


def _log_state(worker_id: str, device_id: str, health: DeviceHealth, *, was_tested: bool) -> None:
    name = f"Device {worker_id}/{device_id}" if device_id else f"Worker {worker_id}"
    if health.state is HealthState.QUARANTINED:
        log.warning("%s is quarantined until %s: %s.", name, health.until, health.cause)
    elif health.state is HealthState.RETIRED:
        log.error("%s is retired after %s quarantines: %s.", name, health.strikes, health.cause)
    elif health == NO_ERRORS:
        log.info("%s is trusted again, since a person undrained it.", name)
    elif health.state is HealthState.HEALTHY and was_tested:
        log.info("%s is trusted again.", name)
    elif health.state is HealthState.HEALTHY:
        text = "%s can't be tested from here, so it is trusted without a burn-in after: %s."
        log.warning(text, name, health.cause)
