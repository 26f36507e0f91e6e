"""``airflow hetero workers``: the known workers, their devices, and how much of them is leased."""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType

from hetero_airflow.cli.action import action, open_store
from hetero_airflow.cli.output import age, cell, show, show_json, table
from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.executor.configuration import read_configuration
from hetero_airflow.executor.explanation.device_text import count, pairs_text
from hetero_airflow.model.device import UNCOVERED_KEY, Device, Telemetry
from hetero_airflow.model.devices.identity import contested_devices, contested_text
from hetero_airflow.model.devices.memory import memory_text
from hetero_airflow.model.heartbeat import WorkerHeartbeat
from hetero_airflow.model.hold import Hold, holds_on
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.topology import RACK_LABEL, SITE_LABEL
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.units import MILLI_PER_DEVICE, format_bytes

_STATE_STYLES = {WorkerState.ONLINE: "green"}
NO_WORKERS = (
    "No worker is known. A scheduler that runs with HeteroExecutor reports its own worker; "
    "`airflow hetero config --check` says what is missing."
)


@action
def workers(args: Namespace) -> None:
    """Print the workers that the store knows."""
    store = open_store()
    snapshot, last_seen = store.snapshot(), store.last_seen()
    if args.site:
        snapshot = workers_at_site(snapshot, args.site)
    if args.json:
        show_json(workers_json(snapshot, last_seen, store.telemetry()))
    else:
        timeout_s = read_configuration().worker_timeout_s
        show(*worker_report(snapshot, last_seen, store.heartbeats(), datetime.now(UTC), timeout_s))


def workers_at_site(snapshot: Snapshot, site: str) -> Snapshot:
    """The snapshot with only the workers of one site.

    :raises SettingsError: the site has no worker
    """
    here = tuple(worker for worker in snapshot.workers if worker.labels.get(SITE_LABEL) == site)
    if not here:
        sites = sorted({worker.labels[SITE_LABEL] for worker in snapshot.workers if SITE_LABEL in worker.labels})
        raise SettingsError(
            f"--site {shorten(site)}",
            found=f"workers of {', '.join(map(shorten, sites)) or 'no site'}",
            remedy=f"The label {SITE_LABEL} of a worker names its site",
        )
    ids = {worker.id for worker in here}
    return replace(snapshot, workers=here, holds=tuple(hold for hold in snapshot.holds if hold.worker_id in ids))


def worker_report(
    snapshot: Snapshot,
    last_seen: Mapping[str, datetime],
    heartbeats: Mapping[str, WorkerHeartbeat],
    now: datetime,
    worker_timeout_s: float,
) -> Iterator[RenderableType]:
    """The workers as a table with one row per worker, then a line for each thing that needs attention. Pure."""
    if not snapshot.workers:
        yield cell(NO_WORKERS)
        return
    rows = [
        (
            cell(worker.id, *_identity_lines(worker)),
            cell(worker.state, *_hold_kinds(worker, snapshot), style=_STATE_STYLES.get(worker.state, "red")),
            cell(f"{age(last_seen[worker.id], now)} ago" if worker.id in last_seen else "never"),
            cell(*_lines(worker, snapshot)),
        )
        for worker in snapshot.workers
    ]
    yield table(("WORKER", "STATE", "LAST SEEN", "LEASED / TOTAL"), rows, whole=0)
    for line in (*_liveness_lines(snapshot, last_seen, heartbeats, now, worker_timeout_s), *_problem_lines(snapshot)):
        yield cell(line, style="yellow")


def _liveness_lines(
    snapshot: Snapshot,
    last_seen: Mapping[str, datetime],
    heartbeats: Mapping[str, WorkerHeartbeat],
    now: datetime,
    worker_timeout_s: float,
) -> Iterator[str]:
    for worker in snapshot.workers:
        age_s = (now - last_seen.get(worker.id, now)).total_seconds()
        if worker.state is WorkerState.ONLINE and age_s > worker_timeout_s:
            yield f"Worker {worker.id} sends no heartbeat, and no scheduler has marked it lost: does a scheduler run?"
    for worker in snapshot.workers:
        leases = ", ".join(sorted(heartbeats[worker.id].leases)) if worker.id in heartbeats else ""
        if worker.state is WorkerState.LOST and leases:
            yield f"Worker {worker.id} comes back when no process of the leases {leases} is left on it."


def _problem_lines(snapshot: Snapshot) -> Iterator[str]:
    for hold in snapshot.holds:
        yield f"{hold.worker_id}/{hold.device_id} is {hold}." if hold.device_id else f"{hold.worker_id} is {hold}."
    for reports in contested_devices(snapshot.workers):
        yield contested_text(reports)
    for worker in snapshot.workers:
        for problem in worker.problems:
            yield f"Worker {worker.id} may have more devices: {problem}"
        if worker.state is WorkerState.ONLINE:
            yield from _unleasable_lines(worker, snapshot.holds_of(worker.id))
            uncovered = ", ".join(device.id for device in worker.devices if device.details.get(UNCOVERED_KEY))
            if uncovered:
                yield f"{worker.id} can't see which processes use {uncovered}: see `airflow hetero config --check`"


def _unleasable_lines(worker: Worker, holds: tuple[Hold, ...]) -> Iterator[str]:
    """Why devices get no task: one line for each cause. Without held devices, and GPUs whose instances are leased."""
    parents = {device.parent for device in worker.devices}
    ids: dict[str, list[str]] = {}
    for device in worker.devices:
        if not device.leasable and device.problem and device.id not in parents and not holds_on(device, holds):
            ids.setdefault(device.problem, []).append(device.id)
    for problem, device_ids in ids.items():
        yield f"{worker.id}: no task gets {', '.join(device_ids)}: {problem}"


def workers_json(
    snapshot: Snapshot, last_seen: Mapping[str, datetime], telemetry: Mapping[tuple[str, str], Telemetry]
) -> list[dict[str, Any]]:
    """The workers as JSON values; each device has its last telemetry and its leased amount. Pure."""
    return [
        {
            **worker.model_dump(mode="json", exclude={"devices"}),
            "holds": [
                {**asdict(hold), "since": hold.since.isoformat(), "until": hold.until and hold.until.isoformat()}
                for hold in snapshot.holds_of(worker.id)
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
    yield from dict.fromkeys(hold.kind for hold in snapshot.holds_of(worker.id) if not hold.device_id)


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
            yield f"{format_bytes(used.memory_bytes)} / {memory_text(device)} of host memory"
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
    """How much of the devices of one model is leased; a device that can't be leased counts only while it is in use.

    :param used: of each device, in thousandths
    """
    total = sum(device.leasable or share_milli > 0 for device, share_milli in zip(devices, used, strict=True))
    shared = any(share_milli % MILLI_PER_DEVICE for share_milli in used)
    blocked = sum(not device.leasable for device in devices)
    text = f"{sum(used) / MILLI_PER_DEVICE:g} / {total} {name}"
    text += ", cooperative shares" if shared else ""
    return text + (f", {count(blocked, 'device')} not leasable" if blocked else "")
