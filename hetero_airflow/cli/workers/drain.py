"""``airflow hetero drain`` and ``undrain``: which bars a person's word puts up or takes off, and what is said of it.

Pure, but for reading one worker's bars.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from rich.console import RenderableType
from sqlalchemy import Engine

from hetero_airflow.cli.device_text import count
from hetero_airflow.cli.output import cell
from hetero_airflow.errors import HeteroError, shorten
from hetero_airflow.model.device_health import NO_ERRORS
from hetero_airflow.model.hold import Hold, HoldKind, holds_on
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.store.codec import clean_cause
from hetero_airflow.store.sql.holds import read_holds
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.store import HealthNoted, HoldLifted, StoreEvent

MAX_REASON = 200
_MAX_NAMES = 3
_MAX_TASKS = 20


@dataclass(frozen=True, slots=True)
class Target:
    """What WORKER or WORKER/DEVICE stands for."""

    worker_id: str
    device_id: str
    """Empty for the whole worker."""

    def __str__(self) -> str:
        return f"{self.worker_id}/{self.device_id}" if self.device_id else self.worker_id


def find_target(text: str, snapshot: Snapshot) -> Target:
    """The worker or device of that name; ids may hold slashes themselves.

    >>> from hetero_airflow.testing import a_worker
    >>> find_target("worker-a/GPU-1", Snapshot(1, (a_worker(),)))
    Target(worker_id='worker-a', device_id='GPU-1')

    :raises HeteroError: no such worker or device
    """
    devices = {worker.id: {device.id for device in worker.devices} for worker in snapshot.workers}
    for bar in snapshot.holds:
        devices[bar.worker_id] |= {bar.device_id} - {""}
    if text in devices:
        return Target(text, "")
    own = max((worker_id for worker_id in devices if text.startswith(f"{worker_id}/")), key=len, default=None)
    if own is None:
        remedy = _near(text.partition("/")[0], devices) or "`airflow hetero workers` lists them"
        raise HeteroError(f"worker {shorten(text)}", found="no such worker", remedy=remedy)
    device_id = text[len(own) + 1 :]
    if device_id not in devices[own]:
        remedy = _near(device_id, devices[own]) or "`airflow hetero workers --json` lists them"
        raise HeteroError(f"device {shorten(device_id)} of worker {own}", found="no such device", remedy=remedy)
    return Target(own, device_id)


def drain_hold(target: Target, snapshot: Snapshot, *, moves: bool, reason: str, now: datetime) -> Hold:
    """The bar that a person puts up; since when it was drained stays if it was already.

    :raises HeteroError: a reason that is too long
    """
    if len(reason) > MAX_REASON:
        found, remedy = f"{len(reason)} characters", f"Say it in {MAX_REASON}"
        raise HeteroError(f"--reason {shorten(reason)}", found=found, remedy=remedy)
    before = next((bar for bar in _drained(snapshot.holds) if _target(bar) == target), None)
    returns = f"a person runs `airflow hetero undrain {target}`"
    cause = clean_cause(reason) or (before.cause if before else "no reason given")
    since = before.since if before else now
    return Hold(target.worker_id, target.device_id, HoldKind.DRAINED, cause, since, returns, moves=moves)


def drain_report(bar: Hold, after: Snapshot) -> Iterator[RenderableType]:
    """What is out now, and what becomes of the tasks there.

    :param after: with the bar in it
    """
    worker = next(worker for worker in after.workers if worker.id == bar.worker_id)
    held = {device.id for device in worker.devices if bar in holds_on(device, after.holds_of(bar.worker_id))}
    yield cell(f"{_target(bar)} is drained: {count(len(held), 'device')} out, {bar.cause}.", style="bold")
    on_it = [
        lease
        for lease in after.leases
        if lease.worker_id == bar.worker_id and any(claim.device_id in held for claim in lease.claims)
    ]
    if not on_it:
        yield cell("No task runs there.")
        return
    fate = "told to save and go on elsewhere at the scheduler's next heartbeat" if bar.moves else "left to finish"
    yield cell(f"{count(len(on_it), 'task')} there, {fate}:")
    for lease in on_it[:_MAX_TASKS]:
        yield cell(f"  {_task(lease, after)}")
    if len(on_it) > _MAX_TASKS:
        yield cell(f"  and {len(on_it) - _MAX_TASKS} more")


def undrain_events(target: Target, snapshot: Snapshot) -> list[StoreEvent]:
    """What takes off the bars of the target.

    Of a device every bar, its quarantine too, since a person says that it is well; of a worker its own and those that
    people put on its devices.
    """
    events: list[StoreEvent] = []
    for bar in snapshot.holds_of(target.worker_id):
        is_own = bar.device_id == target.device_id
        if not is_own and (target.device_id or bar.kind is not HoldKind.DRAINED):
            continue
        events.append(HoldLifted(bar.worker_id, bar.device_id, bar.kind))
        if bar.kind is HoldKind.QUARANTINED:
            events.append(HealthNoted(bar.worker_id, bar.device_id, NO_ERRORS))
    return events


def undrain_report(target: Target, before: Snapshot, after: Snapshot) -> Iterator[RenderableType]:
    """What takes tasks again, and what there is still kept out, why."""
    gone = [bar for bar in before.holds_of(target.worker_id) if bar not in after.holds]
    if not gone and not _left(target, after):
        yield cell(f"{target} was not out.")
    for bar in gone:
        yield cell(f"{_target(bar)} takes tasks again: it was {bar}.")
    for bar in _left(target, after):
        yield cell(f"{_target(bar)} stays out: {bar}.", style="yellow")


def holds_here(database: Engine, worker_id: str) -> tuple[Hold, ...]:
    """The bars on a worker and its devices; none where there is no database to ask."""
    try:
        with read_transaction(database) as connection:
            return tuple(read_holds(connection, [worker_id]).get(worker_id, ()))
    except HeteroError:
        return ()


def _left(target: Target, after: Snapshot) -> list[Hold]:
    bars = after.holds_of(target.worker_id)
    if not target.device_id:
        return list(bars)
    worker = next(worker for worker in after.workers if worker.id == target.worker_id)
    own = next((device for device in worker.devices if device.id == target.device_id), None)
    return [] if own is None else list(holds_on(own, bars))


def _drained(bars: Iterable[Hold]) -> Iterator[Hold]:
    return (bar for bar in bars if bar.kind is HoldKind.DRAINED)


def _target(bar: Hold) -> Target:
    return Target(bar.worker_id, bar.device_id)


def _near(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(known), n=_MAX_NAMES, cutoff=0.5)
    return f"Use {' or '.join(found)}" if found else ""


def _task(lease: Lease, snapshot: Snapshot) -> str:
    holder = snapshot.holders.get(lease.request_id)
    devices = ", ".join(claim.device_id for claim in lease.claims)
    if holder is None:
        return f"lease {lease.id} on {devices}"
    instance = f"[{holder.map_index}]" if holder.map_index >= 0 else ""
    return f"{holder.dag_id}.{holder.task_id}{instance} in run {holder.run_id}, on {devices}"
