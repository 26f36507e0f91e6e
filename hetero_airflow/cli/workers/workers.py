"""``airflow hetero workers``: the workers of a snapshot as people and programs read them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from rich.console import RenderableType

from hetero_airflow.cli.device_text import count, pairs_text
from hetero_airflow.cli.output import age, cell, table
from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.heartbeat import WorkerHeartbeat
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.topology import RACK_LABEL, SITE_LABEL
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.units import MILLI_PER_DEVICE, format_bytes

NO_WORKERS = (
    "No worker is known. The scheduler reports its own once it runs with HeteroExecutor; "
    "`airflow hetero config --check` says what is missing."
)


def workers_at_site(snapshot: Snapshot, site: str) -> Snapshot:
    """The snapshot with the workers of that site only.

    :raises SettingsError: no worker is there
    """
    here = tuple(worker for worker in snapshot.workers if worker.labels.get(SITE_LABEL) == site)
    if not here:
        sites = sorted({worker.labels[SITE_LABEL] for worker in snapshot.workers if SITE_LABEL in worker.labels})
        raise SettingsError(
            f"--site {shorten(site)}",
            found=f"workers of {', '.join(map(shorten, sites)) or 'no site'}",
            remedy=f"A worker says where it stands by its label {SITE_LABEL}",
        )
    ids = {worker.id for worker in here}
    return replace(snapshot, workers=here, holds=tuple(bar for bar in snapshot.holds if bar.worker_id in ids))


def worker_report(
    snapshot: Snapshot,
    last_seen: Mapping[str, datetime],
    heartbeats: Mapping[str, WorkerHeartbeat],
    now: datetime,
    worker_timeout_s: float,
) -> Iterator[RenderableType]:
    """The workers as a table: one row a worker, in it one line for each model of its devices."""
    if not snapshot.workers:
        yield cell(NO_WORKERS)
        return
    rows = []
    silent = []
    for worker in snapshot.workers:
        seen = last_seen.get(worker.id)
        is_online = worker.state is WorkerState.ONLINE
        rows.append(
            (
                cell(worker.id, *_identity_lines(worker)),
                cell(worker.state, *_hold_kinds(worker, snapshot), style="green" if is_online else "red"),
                cell("never" if seen is None else f"{age(seen, now)} ago"),
                cell(*_lines(worker, snapshot)),
            )
        )
        if is_online and seen is not None and (now - seen).total_seconds() > worker_timeout_s:
            silent.append(worker.id)
    yield table(("WORKER", "STATE", "LAST SEEN", "LEASED / TOTAL"), rows, whole=0)
    for worker_id in silent:
        yield cell(f"Worker {worker_id} is silent and no scheduler has said so: does one run?", style="yellow")
    for worker in snapshot.workers:
        there = heartbeats[worker.id].leases if worker.id in heartbeats else ()
        if worker.state is WorkerState.LOST and there:
            left = ", ".join(sorted(there))
            yield cell(f"Worker {worker.id} is back once no process of the leases {left} is there.", style="yellow")
    for bar in snapshot.holds:
        name = f"{bar.worker_id}/{bar.device_id}" if bar.device_id else bar.worker_id
        yield cell(f"{name} is {bar}.", style="yellow")
    for worker in snapshot.workers:
        for problem in worker.problems:
            yield cell(f"Worker {worker.id} may have more devices: {problem}", style="yellow")


def workers_json(
    snapshot: Snapshot, last_seen: Mapping[str, datetime], telemetry: Mapping[tuple[str, str], Telemetry]
) -> list[dict[str, Any]]:
    """The workers as JSON values, each device with its last reading and what is leased of it."""
    return [
        {
            **worker.model_dump(mode="json", exclude={"devices"}),
            "bars": [
                {**asdict(bar), "since": bar.since.isoformat(), "until": bar.until and bar.until.isoformat()}
                for bar in snapshot.holds_of(worker.id)
            ],
            "last_seen": last_seen[worker.id].isoformat() if worker.id in last_seen else None,
            "devices": [
                {
                    **device.model_dump(mode="json"),
                    "telemetry": _reading(telemetry.get((worker.id, device.id))),
                    "leased_milli": snapshot.used(worker.id, device.id).share_milli,
                    "leased_memory_bytes": snapshot.used(worker.id, device.id).memory_bytes,
                    "capacity_milli": device.capacity_milli,
                }
                for device in worker.devices
            ],
        }
        for worker in snapshot.workers
    ]


def _hold_kinds(worker: Worker, snapshot: Snapshot) -> Iterator[str]:
    yield from dict.fromkeys(bar.kind for bar in snapshot.holds_of(worker.id) if not bar.device_id)


def _reading(telemetry: Telemetry | None) -> dict[str, Any] | None:
    return None if telemetry is None else telemetry.model_dump(mode="json", exclude={"device_id"})


def _identity_lines(worker: Worker) -> Iterator[str]:
    if worker.host != worker.id:
        yield f"host {worker.host}"
    yield f"engine {worker.engine}"
    if SITE_LABEL in worker.labels:
        yield f"site {worker.labels[SITE_LABEL]}"
    if RACK_LABEL in worker.labels:
        yield f"rack {worker.labels[RACK_LABEL]}"


def _lines(worker: Worker, snapshot: Snapshot) -> Iterator[str]:
    by_name: dict[str, list[Device]] = {}
    for device in worker.devices:
        if device.kind == "cpu":
            used = snapshot.used(worker.id, device.id)
            yield f"{used.share_milli // MILLI_PER_DEVICE} / {len(device.cores)} cpu cores"
            yield f"{format_bytes(used.memory_bytes)} / {format_bytes(device.memory_bytes)} of host memory"
        else:
            by_name.setdefault(str(device), []).append(device)
    for name, devices in by_name.items():
        yield _model_line(name, devices, [snapshot.used(worker.id, device.id).share_milli for device in devices])
    labels = {name: value for name, value in worker.labels.items() if name not in (SITE_LABEL, RACK_LABEL)}
    if labels:
        yield f"labels {pairs_text(labels.items(), '=')}"
    if worker.runtime:
        yield pairs_text(worker.runtime.items(), " ")


def _model_line(name: str, devices: list[Device], used: list[int]) -> str:
    """How much of the devices of one model is leased; those that can't be leased count only while they are held."""
    total = sum(device.leasable or held > 0 for device, held in zip(devices, used, strict=True))
    shared = any(held % MILLI_PER_DEVICE for held in used)
    blocked = sum(not device.leasable for device in devices)
    text = f"{sum(used) / MILLI_PER_DEVICE:g} / {total} {name}"
    text += ", cooperative shares" if shared else ""
    return text + (f", {count(blocked, 'device')} not leasable" if blocked else "")
