"""``airflow hetero undrain``: a worker or a device takes tasks again."""

from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import RenderableType

from hetero_airflow.cli.action import action, open_store
from hetero_airflow.cli.output import cell, show
from hetero_airflow.executor.explanation.drains import Target, find_target, undrain_events
from hetero_airflow.model.hold import Hold, holds_on
from hetero_airflow.model.snapshot import Snapshot


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
