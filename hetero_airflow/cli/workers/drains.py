"""``airflow hetero drain`` and ``undrain``: whether a worker or a device takes new tasks."""

from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import RenderableType

from hetero_airflow.cli.action import action, open_store
from hetero_airflow.cli.output import cell, show
from hetero_airflow.executor.explanation.device_text import count, task_name
from hetero_airflow.executor.explanation.drains import Target, drain_hold, find_target, undrain_events
from hetero_airflow.model.hold import Hold, holds_on
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store.store import HoldPlaced

_MAX_TASKS = 20


@action
def drain(args: Namespace) -> None:
    """Place a hold on a worker or a device."""
    store, now = open_store(), datetime.now(UTC)
    before = store.snapshot()
    hold = drain_hold(find_target(args.target, before), before, moves=args.move, reason=args.reason, now=now)
    store.record([HoldPlaced(hold)], now)
    show(*drain_report(hold, store.snapshot()))


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
    outcome = "save at the scheduler's next heartbeat and go on elsewhere" if hold.moves else "finish there"
    yield cell(f"{count(len(leases), 'running task')}, to {outcome}:")
    for lease in leases[:_MAX_TASKS]:
        yield cell(f"  {_task(lease, after)}")
    if len(leases) > _MAX_TASKS:
        yield cell(f"  and {len(leases) - _MAX_TASKS} more")


def _task(lease: Lease, snapshot: Snapshot) -> str:
    holder = snapshot.holders.get(lease.request_id)
    devices = ", ".join(claim.device_id for claim in lease.claims)
    if holder is None:
        return f"a task that is not known any more, on {devices}"
    return f"{task_name(holder)} in run {holder.run_id}, on {devices}"


@action
def undrain(args: Namespace) -> None:
    """Lift the holds of a worker or a device."""
    store = open_store()
    before = store.snapshot()
    target = find_target(args.target, before)
    store.record(undrain_events(target, before), datetime.now(UTC))
    show(*undrain_report(target, before, store.snapshot()))


def undrain_report(target: Target, before: Snapshot, after: Snapshot) -> Iterator[RenderableType]:
    """What takes tasks again, and the holds that remain there. Pure."""
    lifted = [hold for hold in before.holds_of(target.worker_id) if hold not in after.holds]
    remaining = _remaining(target, after)
    if not lifted and not remaining:
        yield cell(f"{target} has no hold; it takes tasks already.")
    for hold in lifted:
        yield cell(f"{Target.of(hold)} takes tasks again: it was {hold}.")
    for hold in remaining:
        yield cell(f"{Target.of(hold)} stays out: {hold}.", style="yellow")


def _remaining(target: Target, after: Snapshot) -> list[Hold]:
    holds = after.holds_of(target.worker_id)
    if not target.device_id:
        return list(holds)
    worker = next(worker for worker in after.workers if worker.id == target.worker_id)
    device = next((device for device in worker.devices if device.id == target.device_id), None)
    return [] if device is None else list(holds_on(device, holds))
