"""``airflow hetero top``: devices, the tasks that hold them, and the queue, live."""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.text import Text

from hetero_airflow.cli.action import action, database, open_store
from hetero_airflow.cli.output import age, cell, show, table
from hetero_airflow.cli.watch import watch
from hetero_airflow.executor.explanation.device_state import DeviceState, device_state
from hetero_airflow.executor.explanation.device_text import count, task_name
from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.devices.memory import memory_text
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.task_names import TaskNames
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.store.sql.queue import WaitingRequest, read_waiting_requests
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.units import format_bytes

MAX_WAITING = 20
BAR_WIDTH = 10

_STYLES = {
    DeviceState.FREE: "green",
    DeviceState.LEASED: "blue",
    DeviceState.PARTLY: "cyan",
    DeviceState.IDLE: "yellow",
    DeviceState.HELD: "yellow",
    DeviceState.FAULTY: "red",
    DeviceState.DIVIDED: "",
}


@dataclass(frozen=True, slots=True)
class TopFacts:
    """What one picture shows."""

    snapshot: Snapshot
    readings: Mapping[tuple[str, str], Telemetry]
    waiting: Sequence[WaitingRequest]
    """The first requests of the queue."""
    now: datetime


@action
def top(args: Namespace) -> None:
    """Show the picture until the user quits; once, if asked or if the output is no terminal."""
    store = open_store()
    if args.once or not sys.stdout.isatty():
        show(*top_report(read_facts(store)))
        return
    watch(lambda height: top_report(read_facts(store), height))


def read_facts(store: SqlStore) -> TopFacts:
    """Read the store.

    :raises StoreUnavailable: the database is down, locked or not migrated
    """
    snapshot = store.snapshot()
    with read_transaction(database()) as connection:
        waiting = read_waiting_requests(connection, {request.dag_id for request in snapshot.pending}, 0, MAX_WAITING)
    return TopFacts(snapshot, store.telemetry(), waiting, datetime.now(UTC))


def top_report(facts: TopFacts, height: int | None = None) -> Iterator[RenderableType]:
    """The picture: sums, devices, queue. Pure.

    :param height: lines of the terminal; rows beyond it are counted. None: all rows
    """
    snapshot = facts.snapshot
    devices = [
        (worker, device, device_state(worker, device, snapshot.used(*key), facts.readings.get(key), holds))
        for worker in snapshot.workers
        for holds in (snapshot.holds_of(worker.id),)
        for device in worker.devices
        for key in ((worker.id, device.id),)
    ]
    yield _sums(facts, [state for _, _, state in devices])
    waiting = facts.waiting if height is None else facts.waiting[: max(3, height // 3)]
    rows = devices if height is None else devices[: max(3, height - len(waiting) - 8)]
    if rows:
        yield _device_table(facts, rows)
    if len(rows) < len(devices):
        yield cell(f"and {count(len(devices) - len(rows), 'device')} more; `airflow hetero workers` lists all")
    yield cell("")
    yield cell(f"Waiting: {len(snapshot.pending)}", style="bold")
    if waiting:
        yield _queue_table(facts, waiting)
    if len(waiting) < len(snapshot.pending):
        yield cell(f"and {len(snapshot.pending) - len(waiting)} more; `airflow hetero queue` lists all")


def _sums(facts: TopFacts, states: Sequence[DeviceState]) -> RenderableType:
    workers = facts.snapshot.workers
    lost = sum(worker.state is WorkerState.LOST for worker in workers)
    counted = Counter(states)
    parts = [f"{counted[state]} {state}" for state in DeviceState if counted[state]]
    return cell(
        f"{facts.now:%H:%M:%S} UTC   {count(len(workers), 'worker')}" + (f", {lost} lost" if lost else "") + "   "
        f"{count(len(states), 'device')}: {', '.join(parts) or 'none'}",
        style="bold",
    )


def _device_table(facts: TopFacts, rows: Sequence[tuple[Worker, Device, DeviceState]]) -> RenderableType:
    holders: dict[tuple[str, str], list[str]] = {}
    for lease in facts.snapshot.leases:
        holder = facts.snapshot.holders.get(lease.request_id)
        name = task_name(holder) if holder else "a task that is not known any more"
        for claim in lease.claims:
            holders.setdefault((lease.worker_id, claim.device_id), []).append(name)
    cells = []
    for worker, device, state in rows:
        key = (worker.id, device.id)
        reading = facts.readings.get(key) or Telemetry(device_id=device.id)
        leased = facts.snapshot.used(*key).share_milli / max(device.capacity_milli, 1)
        cells.append(
            (
                cell(worker.id),
                cell(device),
                cell(state, style=_STYLES[state]),
                cell(f"{leased:.0%}"),
                _bar(reading.utilization),
                cell(_memory_text(device, reading)),
                cell("-" if reading.temperature_c is None else f"{reading.temperature_c:.0f} °C"),
                cell("-" if reading.power_w is None else f"{reading.power_w:.0f} W"),
                cell(", ".join(holders.get(key, ()))),
            )
        )
    return table(("WORKER", "DEVICE", "STATE", "LEASED", "USE", "MEMORY", "TEMP", "POWER", "TASK"), cells)


def _bar(part: float | None) -> Text:
    """A bar and a percentage, as in htop.

    >>> _bar(0.25).plain, _bar(None).plain
    ('███░░░░░░░ 25%', '-')
    """
    if part is None:
        return cell("-")
    filled = min(BAR_WIDTH, int(part * BAR_WIDTH + 0.5))
    return cell("█" * filled + "░" * (BAR_WIDTH - filled) + f" {part:.0%}")


def _memory_text(device: Device, reading: Telemetry) -> str:
    total, free = memory_text(device), reading.memory_free_bytes
    if free is None or device.memory_bytes is None:
        return total
    return f"{format_bytes(max(device.memory_bytes - free, 0))} of {total}"


def _queue_table(facts: TopFacts, waiting: Sequence[WaitingRequest]) -> RenderableType:
    names = TaskNames.of(facts.snapshot)
    rows = []
    for request in waiting:
        index = f"[{request.map_index}]" if request.map_index >= 0 else ""
        rows.append(
            (
                cell("-" if request.position is None else request.position),
                cell(f"{request.dag_id}.{request.task_id}{index}"),
                cell(age(request.submitted_at, facts.now)),
                cell(names.put_into(request.reason) or "not decided yet"),
            )
        )
    return table(("#", "TASK", "WAITS", "WHY"), rows)
