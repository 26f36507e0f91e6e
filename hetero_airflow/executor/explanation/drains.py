"""The holds that a person places on workers and devices, and lifts. Pure."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from hetero_airflow.errors import HeteroError, shorten
from hetero_airflow.model.devices.health import NO_ERRORS
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store.codec import clean_cause
from hetero_airflow.store.store import HealthNoted, HoldLifted, StoreEvent

MAX_REASON = 200
_MAX_NAMES = 3


@dataclass(frozen=True, slots=True)
class Target:
    """A worker, or one device of it; what WORKER or WORKER/DEVICE names."""

    worker_id: str
    device_id: str
    """Empty for the whole worker."""

    @classmethod
    def of(cls, hold: Hold) -> "Target":
        """The worker or device that a hold is on."""
        return cls(hold.worker_id, hold.device_id)

    def __str__(self) -> str:
        return f"{self.worker_id}/{self.device_id}" if self.device_id else self.worker_id


def find_target(text: str, snapshot: Snapshot) -> Target:
    """The worker or device of that name; ids can contain slashes.

    >>> from hetero_airflow.testing import a_worker
    >>> find_target("worker-a/GPU-1", Snapshot(1, (a_worker(),)))
    Target(worker_id='worker-a', device_id='GPU-1')

    :raises HeteroError: no such worker or device
    """
    devices = {worker.id: {device.id for device in worker.devices} for worker in snapshot.workers}
    for hold in snapshot.holds:
        devices[hold.worker_id] |= {hold.device_id} - {""}
    if text in devices:
        return Target(text, "")
    worker_ids = [worker_id for worker_id in devices if text.startswith(f"{worker_id}/")]
    if not worker_ids:
        remedy = _near(text.partition("/")[0], devices) or "`airflow hetero workers` lists them"
        raise HeteroError(f"worker {shorten(text)}", found="no such worker", remedy=remedy)
    worker_id = max(worker_ids, key=len)
    device_id = text[len(worker_id) + 1 :]
    if device_id not in devices[worker_id]:
        remedy = _near(device_id, devices[worker_id]) or "`airflow hetero workers --json` lists them"
        raise HeteroError(f"device {shorten(device_id)} of worker {worker_id}", found="no such device", remedy=remedy)
    return Target(worker_id, device_id)


def drain_hold(target: Target, snapshot: Snapshot, *, moves: bool, reason: str, now: datetime) -> Hold:
    """The hold to place. If the target is drained already, its start time stays, and its reason if none is given.

    :raises HeteroError: a reason that is too long
    """
    if len(reason) > MAX_REASON:
        found, remedy = f"{len(reason)} characters", f"Use at most {MAX_REASON}"
        raise HeteroError(f"the reason {shorten(reason)}", found=found, remedy=remedy)
    drained = (hold for hold in snapshot.holds if hold.kind is HoldKind.DRAINED and Target.of(hold) == target)
    before = next(drained, None)
    returns = f"a person runs `airflow hetero undrain {target}`"
    cause = clean_cause(reason) or (before.cause if before else "no reason given")
    since = before.since if before else now
    return Hold(target.worker_id, target.device_id, HoldKind.DRAINED, cause, since, returns, moves=moves)


def undrain_events(target: Target, snapshot: Snapshot) -> list[StoreEvent]:
    """The events that lift the holds of the target.

    For a device these are all its holds, also a quarantine, since a person says that the device is well. For a worker
    these are its own holds, and the drains of its devices.
    """
    events: list[StoreEvent] = []
    for hold in snapshot.holds_of(target.worker_id):
        is_exact = hold.device_id == target.device_id
        if not is_exact and (target.device_id or hold.kind is not HoldKind.DRAINED):
            continue
        events.append(HoldLifted(hold.worker_id, hold.device_id, hold.kind))
        if hold.kind is HoldKind.QUARANTINED:
            events.append(HealthNoted(hold.worker_id, hold.device_id, NO_ERRORS))
    return events


def _near(name: str, valid_names: Iterable[str]) -> str:
    names = difflib.get_close_matches(name, sorted(valid_names), n=_MAX_NAMES, cutoff=0.5)
    return f"Use {' or '.join(names)}" if names else ""
