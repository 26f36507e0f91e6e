"""``airflow hetero undrain``: a worker or a device takes tasks again."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import RenderableType

from hetero_airflow.cli.action import action, open_store
from hetero_airflow.cli.output import cell, show
from hetero_airflow.cli.workers.drain import Target, find_target
from hetero_airflow.model.devices.health import NO_ERRORS
from hetero_airflow.model.hold import Hold, HoldKind, holds_on
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store.store import HealthNoted, HoldLifted, StoreEvent


@action
def undrain(args: Namespace) -> None:
    """Lift the holds of a worker or a device."""
    store = open_store()
    before = store.snapshot()
    target = find_target(args.target, before)
    store.record(undrain_events(target, before), datetime.now(UTC))
    show(*undrain_report(target, before, store.snapshot()))


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
