"""``airflow hetero drain``: no new task for a worker or a device."""

from __future__ import annotations

import difflib
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import RenderableType

from hetero_airflow.cli.action import action, open_store
from hetero_airflow.cli.device_text import count, task_name
from hetero_airflow.cli.output import cell, show
from hetero_airflow.errors import HeteroError, shorten
from hetero_airflow.model.hold import Hold, HoldKind, holds_on
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store.codec import clean_cause
from hetero_airflow.store.store import HoldPlaced

MAX_REASON = 200
_MAX_NAMES = 3
_MAX_TASKS = 20


@dataclass(frozen=True, slots=True)
class Target:
    """A worker, or one device of it; what WORKER or WORKER/DEVICE names."""

    worker_id: str
    device_id: str
    """Empty for the whole worker."""

    @classmethod
    def of(cls, hold: Hold) -> Target:
        """The worker or device that a hold is on."""
        return cls(hold.worker_id, hold.device_id)

    def __str__(self) -> str:
        return f"{self.worker_id}/{self.device_id}" if self.device_id else self.worker_id


@action
def drain(args: Namespace) -> None:
    """Place a hold on a worker or a device."""
    store, now = open_store(), datetime.now(UTC)
    before = store.snapshot()
    hold = drain_hold(find_target(args.target, before), before, moves=args.move, reason=args.reason, now=now)
    store.record([HoldPlaced(hold)], now)
    show(*drain_report(hold, store.snapshot()))


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
        raise HeteroError(f"--reason {shorten(reason)}", found=found, remedy=remedy)
    drained = (hold for hold in snapshot.holds if hold.kind is HoldKind.DRAINED and Target.of(hold) == target)
    before = next(drained, None)
    returns = f"a person runs `airflow hetero undrain {target}`"
    cause = clean_cause(reason) or (before.cause if before else "no reason given")
    since = before.since if before else now
    return Hold(target.worker_id, target.device_id, HoldKind.DRAINED, cause, since, returns, moves=moves)


def drain_report(hold: Hold, after: Snapshot) -> Iterator[RenderableType]:
    """Which devices are out, and what happens to their tasks. Pure.

    :param after: the snapshot that has the hold
    """
    worker = next(worker for worker in after.workers if worker.id == hold.worker_id)
    device_ids = {device.id for device in worker.devices if hold in holds_on(device, after.holds_of(worker.id))}
    yield cell(f"{Target.of(hold)} is drained: {count(len(device_ids), 'device')} out, {hold.cause}.", style="bold")
    leases = [
        lease
        for lease in after.leases
        if lease.worker_id == worker.id and any(claim.device_id in device_ids for claim in lease.claims)
    ]
    if not leases:
        yield cell("No task runs there.")
        return
    what = "save at the scheduler's next heartbeat and go on elsewhere" if hold.moves else "finish there"
    yield cell(f"{count(len(leases), 'running task')}, to {what}:")
    for lease in leases[:_MAX_TASKS]:
        yield cell(f"  {_task(lease, after)}")
    if len(leases) > _MAX_TASKS:
        yield cell(f"  and {len(leases) - _MAX_TASKS} more")


def _near(name: str, known: Iterable[str]) -> str:
    names = difflib.get_close_matches(name, sorted(known), n=_MAX_NAMES, cutoff=0.5)
    return f"Use {' or '.join(names)}" if names else ""


def _task(lease: Lease, snapshot: Snapshot) -> str:
    holder = snapshot.holders.get(lease.request_id)
    devices = ", ".join(claim.device_id for claim in lease.claims)
    if holder is None:
        return f"a task that is not known any more, on {devices}"
    return f"{task_name(holder)} in run {holder.run_id}, on {devices}"
