"""The read-only routes for users and their programs, with Airflow's login and permissions.

Workers, devices and wanted workers need the permission to see Airflow's jobs. In the queue, a user sees the tasks of
the DAGs that the user may read.
"""

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.task_names import TaskNames
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.scheduling.advice.wanted_workers import WantedType
from hetero_airflow.store.lease_history import LiveLease, read_live_leases
from hetero_airflow.store.sql.queue import WaitingRequest, read_waiting_requests
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.web.fleet_reader import FleetReader
from hetero_airflow.web.permissions import readable_dags, require_access_to_jobs

MAX_PAGE = 1000

Offset = Annotated[int, Query(ge=0, le=10**6)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
TypeName = Annotated[str | None, Query(max_length=100)]


class WorkerRow(BaseModel):
    """One worker, without its devices."""

    id: str
    host: str
    engine: str
    state: WorkerState
    last_seen: datetime | None
    labels: dict[str, str]
    runtime: dict[str, str]
    problems: tuple[str, ...]
    holds: list[str]
    """Why the worker, or a device of it, gets no new task."""
    devices: int
    leasable: int


class DeviceRow(BaseModel):
    """One device, with its last reading and its leased share."""

    worker: str
    worker_state: WorkerState
    device: Device
    telemetry: Telemetry | None
    leased_milli: int
    capacity_milli: int


class WorkerPage(BaseModel):
    """A page of workers."""

    total: int
    workers: list[WorkerRow]


class DevicePage(BaseModel):
    """A page of devices."""

    total: int
    devices: list[DeviceRow]


class QueuePage(BaseModel):
    """A page of waiting requests and a page of live leases."""

    waiting: list[WaitingRequest]
    leases: list[LiveLease]


class MoreWorkers(BaseModel):
    """How many more workers of which type would let all waiting requests start now."""

    workers: int
    """Sum over `types`."""
    types: tuple[WantedType, ...]
    """Every known type, or the requested one."""
    waiting: int
    fitting: int
    """Waiting requests whose devices are free already."""
    unservable: int
    """Waiting requests that no known type can run."""


class UserRoutes:
    """The handlers. They block on the database, so FastAPI runs them in threads."""

    def __init__(self, fleet: FleetReader) -> None:
        self._fleet = fleet

    def router(self) -> APIRouter:
        """The routes to the handlers."""
        router = APIRouter(dependencies=[Depends(require_access_to_jobs)])
        router.add_api_route("/workers", self.workers, methods=["GET"])
        router.add_api_route("/devices", self.devices, methods=["GET"])
        router.add_api_route("/queue", self.queue, methods=["GET"])
        router.add_api_route("/wanted-workers", self.wanted_workers, methods=["GET"])
        return router

    def workers(self, offset: Offset = 0, limit: Limit = 100) -> WorkerPage:
        """The workers, ordered by id."""
        snapshot, last_seen = self._fleet.store.snapshot(), self._fleet.store.last_seen()
        page = snapshot.workers[offset : offset + limit]
        rows = [_worker_row(worker, snapshot, last_seen.get(worker.id)) for worker in page]
        return WorkerPage(total=len(snapshot.workers), workers=rows)

    def devices(self, worker: str | None = None, offset: Offset = 0, limit: Limit = 100) -> DevicePage:
        """The devices of all workers, or of one, in the order of workers and their inventories."""
        snapshot = self._fleet.store.snapshot()
        devices = [(host, device) for host in snapshot.workers if worker in (None, host.id) for device in host.devices]
        page = devices[offset : offset + limit]
        telemetry = self._fleet.store.telemetry() if page else {}
        rows = [
            DeviceRow(
                worker=host.id,
                worker_state=host.state,
                device=device,
                telemetry=telemetry.get((host.id, device.id)),
                leased_milli=snapshot.used(host.id, device.id).share_milli,
                capacity_milli=device.capacity_milli,
            )
            for host, device in page
        ]
        return DevicePage(total=len(devices), devices=rows)

    def queue(self, user: GetUserDep, offset: Offset = 0, limit: Limit = 100) -> QueuePage:
        """The waiting requests in the order of the last cycle, with their reasons, and the live leases."""
        readable = readable_dags(user)
        with read_transaction(self._fleet.engine()) as connection:
            waiting = read_waiting_requests(connection, readable, offset, limit)
            leases = read_live_leases(connection, readable, offset, limit)
        names = TaskNames.of(self._fleet.store.snapshot())
        waiting = [replace(request, reason=names.put_into(request.reason, readable)) for request in waiting]
        return QueuePage(waiting=waiting, leases=leases)

    def wanted_workers(self, type: TypeName = None) -> MoreWorkers:
        """How many more workers would let all waiting requests start, by type or of one type; 0 for an unknown type."""
        wanted = self._fleet.wanted_workers(self._fleet.store.snapshot())
        types = tuple(row for row in wanted.types if type in (None, row.type))
        return MoreWorkers(
            workers=sum(row.workers for row in types),
            types=types,
            waiting=wanted.waiting,
            fitting=wanted.fitting,
            unservable=wanted.unservable,
        )


def _worker_row(worker: Worker, snapshot: Snapshot, last_seen_at: datetime | None) -> WorkerRow:
    shared: dict[str, Any] = worker.model_dump(
        include={"id", "host", "engine", "state", "labels", "runtime", "problems"}
    )
    return WorkerRow(
        **shared,
        last_seen=last_seen_at,
        holds=[f"{hold.device_id or 'worker'}: {hold}" for hold in snapshot.holds_of(worker.id)],
        devices=len(worker.devices),
        leasable=sum(device.leasable for device in worker.devices),
    )
