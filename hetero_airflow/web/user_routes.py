"""The routes for people and their programs, by Airflow's own login and permissions: read only.

Workers, devices and what would help are for whoever may see Airflow's jobs; of the queue, each sees the tasks of the
DAGs that he may read.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from sqlalchemy import Engine

from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.scheduling.advice.wanted_workers import WantedType, WantedWorkers, wanted_workers
from hetero_airflow.store.sql.queue import LiveLease, WaitingRequest, read_live_leases, read_waiting_requests
from hetero_airflow.store.sql.store import SqlStore
from hetero_airflow.store.sql.transaction import read_transaction

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
    bars: list[str]
    """Why it, or a device of it, gets no new task."""
    devices: int
    leasable: int


class DeviceRow(BaseModel):
    """One device, with its last reading and what is leased of it."""

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
    """A page of what waits, and one of what runs."""

    waiting: list[WaitingRequest]
    leases: list[LiveLease]


class MoreWorkers(BaseModel):
    """What would help now: how many more workers of which type would let all that waits start."""

    workers: int
    """Of the types that were asked for, together."""
    types: tuple[WantedType, ...]
    """Every known type, or the one that was asked for."""
    waiting: int
    fitting: int
    """Of those that wait: for whom the devices are free already."""
    unservable: int
    """For whom no known type would do."""


class UserRoutes:
    """The handlers. They block on the database, so FastAPI runs them in threads."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine
        self._wanted: tuple[Snapshot, WantedWorkers] | None = None

    @cached_property
    def _store(self) -> SqlStore:
        return SqlStore(self._engine())

    def router(self) -> APIRouter:
        """All of them."""
        router = APIRouter(dependencies=[Depends(requires_access_view(AccessView.JOBS))])
        router.add_api_route("/workers", self.workers, methods=["GET"])
        router.add_api_route("/devices", self.devices, methods=["GET"])
        router.add_api_route("/queue", self.queue, methods=["GET"])
        router.add_api_route("/wanted-workers", self.wanted_workers, methods=["GET"])
        return router

    def workers(self, offset: Offset = 0, limit: Limit = 100) -> WorkerPage:
        """The workers by id."""
        snapshot, seen = self._store.snapshot(), self._store.last_seen()
        page = snapshot.workers[offset : offset + limit]
        return WorkerPage(
            total=len(snapshot.workers), workers=[_worker_row(one, snapshot, seen.get(one.id)) for one in page]
        )

    def devices(self, worker: str | None = None, offset: Offset = 0, limit: Limit = 100) -> DevicePage:
        """The devices, by worker and as its inventory orders them; of all workers, or of one."""
        snapshot = self._store.snapshot()
        found = [(own, device) for own in snapshot.workers if worker in (None, own.id) for device in own.devices]
        page = found[offset : offset + limit]
        telemetry = self._store.telemetry() if page else {}
        rows = [
            DeviceRow(
                worker=own.id,
                worker_state=own.state,
                device=device,
                telemetry=telemetry.get((own.id, device.id)),
                leased_milli=snapshot.used(own.id, device.id).share_milli,
                capacity_milli=device.capacity_milli,
            )
            for own, device in page
        ]
        return DevicePage(total=len(found), devices=rows)

    def queue(self, user: GetUserDep, offset: Offset = 0, limit: Limit = 100) -> QueuePage:
        """What waits in the order of the last cycle, with its reasons, and what holds devices."""
        readable: set[str] = get_auth_manager().get_authorized_dag_ids(user=user)
        with read_transaction(self._engine()) as connection:
            return QueuePage(
                waiting=read_waiting_requests(connection, readable, offset, limit),
                leases=read_live_leases(connection, readable, offset, limit),
            )

    def wanted_workers(self, type: TypeName = None) -> MoreWorkers:
        """How many more workers would let all that waits start, by type or of one; none of a type that is not known."""
        snapshot = self._store.snapshot()
        if self._wanted is None or self._wanted[0] is not snapshot:
            self._wanted = (snapshot, wanted_workers(snapshot))
        found = self._wanted[1]
        types = tuple(one for one in found.types if type in (None, one.type))
        return MoreWorkers(
            workers=sum(one.workers for one in types),
            types=types,
            waiting=found.waiting,
            fitting=found.fitting,
            unservable=found.unservable,
        )


def _worker_row(worker: Worker, snapshot: Snapshot, seen: datetime | None) -> WorkerRow:
    shared: dict[str, Any] = worker.model_dump(
        include={"id", "host", "engine", "state", "labels", "runtime", "problems"}
    )
    return WorkerRow(
        **shared,
        last_seen=seen,
        bars=[f"{bar.device_id or 'worker'}: {bar}" for bar in snapshot.holds_of(worker.id)],
        devices=len(worker.devices),
        leasable=sum(device.leasable for device in worker.devices),
    )
