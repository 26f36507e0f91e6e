"""Physical devices that several workers report: two containers that see one GPU, or one that restarts under a new name.

One rule for the workers of all engines: a physical device has one holder. While a worker has leased a part of
it, no other worker can lease it; the stores refuse that, and snapshots show it as not leasable there. When it is free,
each scheduler's own host may take it next. Of the workers with one of the other engines only the one that reported it
first offers it: a policy that counted it for each of them would plan gangs that can never be placed, and an agent that
lies must not get the devices of others.

A hold on the device counts for all workers that report it, whichever name it was placed under.

Rejected: giving the device to the worker that reports it first in all cases. The tasks that wait in the other scheduler
could never start, since its engine reaches only its own host.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from hetero_airflow.model.devices.identity import physical_ids
from hetero_airflow.model.hold import Hold, holds_on
from hetero_airflow.model.snapshot import NO_USAGE, DeviceUsage
from hetero_airflow.model.worker import Worker, WorkerState

Usage = Mapping[str, Mapping[str, DeviceUsage]]
"""Worker id → device id → usage."""

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class ContestedDevices:
    """Knows which workers report the same physical device, and shows it as leasable only where it may be leased."""

    def __init__(self) -> None:
        self._ids: dict[str, dict[str, str]] = {}
        """Worker id → device id → physical id."""
        self._since: dict[str, Mapping[str, datetime | None]] = {}
        """Worker id → device id → when the worker first reported it."""
        self._holds: dict[str, dict[str, Hold]] = {}
        """Worker id → device id → the first hold on the device; without those on whole workers."""
        self._reports: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """Physical id → worker id → device id."""
        self._contested: set[str] = set()
        """The physical ids that several workers report."""
        self._problems: dict[str, dict[str, str]] = {}
        """Worker id → device id → why it can't be leased there now."""
        self._shown: dict[str, tuple[Worker, Mapping[str, str], Worker]] = {}
        """Worker id → worker as reported, its problems, worker with these problems."""

    def put_worker(
        self, worker: Worker, reported_since: Mapping[str, datetime | None] = {}, holds: Iterable[Hold] = ()
    ) -> None:
        """Add or replace a worker, with the holds on it."""
        ids = physical_ids(worker)
        self._since[worker.id] = reported_since
        device_holds = [hold for hold in holds if hold.device_id]
        self._holds[worker.id] = {
            device.id: held[0] for device in worker.devices if (held := holds_on(device, device_holds))
        }
        if ids != self._ids.get(worker.id):
            self._drop_reports(worker.id)
            self._ids[worker.id] = ids
            for device_id, physical_id in ids.items():
                self._reports[physical_id][worker.id] = device_id
                self._note_contested(physical_id)

    def drop_worker(self, worker_id: str) -> None:
        """Remove a worker; unknown ids are ignored."""
        self._since.pop(worker_id, None)
        self._holds.pop(worker_id, None)
        self._drop_reports(worker_id)

    def _drop_reports(self, worker_id: str) -> None:
        for physical_id in self._ids.pop(worker_id, {}).values():
            del self._reports[physical_id][worker_id]
            self._note_contested(physical_id)

    def _note_contested(self, physical_id: str) -> None:
        reports = self._reports[physical_id]
        if len(reports) > 1:
            self._contested.add(physical_id)
            return
        self._contested.discard(physical_id)
        if not reports:
            del self._reports[physical_id]

    def holder_elsewhere(self, worker_id: str, device_id: str, usage: Usage) -> str | None:
        """Another worker that has leased the same physical device; None if there is none."""
        physical_id = self._ids.get(worker_id, {}).get(device_id)
        if physical_id not in self._contested:
            return None
        return next((id_ for id_ in self._holders(physical_id, usage) if id_ != worker_id), None)

    def _holders(self, physical_id: str, usage: Usage) -> list[str]:
        reports = sorted(self._reports[physical_id].items())
        return [id_ for id_, device_id in reports if usage.get(id_, {}).get(device_id, NO_USAGE).share_milli > 0]

    def update(self, workers: Mapping[str, Worker], usage: Usage) -> bool:
        """Find out where contested devices can't be leased now. Returns whether that has changed."""
        problems: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for physical_id in self._contested:
            holders = self._holders(physical_id, usage)
            leased = self._held(physical_id, holders) if holders else self._offered_twice(physical_id, workers)
            for worker_id, text in (dict(leased) | dict(self._on_hold(physical_id))).items():
                problems[worker_id][self._reports[physical_id][worker_id]] = text
        before, self._problems = self._problems, dict(problems)
        return self._problems != before

    def _held(self, physical_id: str, holders: list[str]) -> Iterator[tuple[str, str]]:
        for worker_id in self._reports[physical_id]:
            holder = next((id_ for id_ in holders if id_ != worker_id), None)
            if holder is not None:
                yield worker_id, f"worker {holder} holds it; it is free here when its task there has ended"

    def _on_hold(self, physical_id: str) -> Iterator[tuple[str, str]]:
        reports = self._reports[physical_id].items()
        holds = [self._holds[id_][device_id] for id_, device_id in reports if device_id in self._holds[id_]]
        for worker_id, _ in reports:
            hold = next((hold for hold in holds if hold.worker_id != worker_id), None)
            if hold is not None:
                yield worker_id, f"on worker {hold.worker_id}, {hold}"

    def _offered_twice(self, physical_id: str, workers: Mapping[str, Worker]) -> Iterator[tuple[str, str]]:
        first: dict[str, str] = {}
        for worker_id, device_id in sorted(self._reports[physical_id].items(), key=self._report_order):
            worker = workers[worker_id]
            if worker.is_scheduler_host or not _offers(worker, device_id):
                continue
            if worker.engine in first:
                name = first[worker.engine]
                yield worker_id, f"worker {name} offers it too and gets its tasks: run one worker for each device"
            first.setdefault(worker.engine, worker_id)

    def _report_order(self, report: tuple[str, str]) -> tuple[datetime, str]:
        worker_id, device_id = report
        return self._since[worker_id].get(device_id) or _LONG_AGO, worker_id

    def shown(self, workers: Mapping[str, Worker]) -> tuple[Worker, ...]:
        """The workers as a snapshot shows them, since the last `update`; an unchanged one is the same object."""
        before, self._shown = self._shown, {}
        for worker_id, problems in self._problems.items():
            checked = before.get(worker_id)
            if checked is None or checked[0] is not workers[worker_id] or checked[1] != problems:
                checked = workers[worker_id], problems, _with_problems(workers[worker_id], problems)
            self._shown[worker_id] = checked
        shown = self._shown
        return tuple(shown[id_][2] if id_ in shown else worker for id_, worker in workers.items())


def _offers(worker: Worker, device_id: str) -> bool:
    is_leasable = any(device.id == device_id and device.leasable for device in worker.devices)
    return worker.state is WorkerState.ONLINE and is_leasable


def _with_problems(worker: Worker, problems: Mapping[str, str]) -> Worker:
    texts = [(device, problems.get(device.id)) for device in worker.devices]
    devices = tuple(device.not_leasable(text) if text else device for device, text in texts)
    return worker.model_copy(update={"devices": devices})
