"""The routes that the page in Airflow's UI asks, below ``/hetero/page``.

A reader with the permission to see Airflow's jobs sees the fleet; a reader of a DAG sees why its tasks wait. Tasks of
other DAGs have no name. Who may edit Airflow's pools may drain.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hetero_airflow.errors import HeteroError
from hetero_airflow.executor.airflow_db.dag_owners import read_dag_owners
from hetero_airflow.executor.explanation.drains import MAX_REASON, drain_hold, find_target, undrain_events
from hetero_airflow.store.lease_history import read_leases_since, read_task_leases
from hetero_airflow.store.sql.queue import read_newest_decision_id, read_waiting_requests
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.store.store import HoldPlaced
from hetero_airflow.web.bodies import read_bounded
from hetero_airflow.web.fleet_reader import FleetReader, readings_period
from hetero_airflow.web.page.bundle import BUNDLE, ICON
from hetero_airflow.web.page.fleet_view import (
    FleetFilter,
    FleetMap,
    FleetSummary,
    FleetTable,
    WorkerFacts,
    filtered_fleet,
    fleet_map,
    fleet_summary,
    fleet_table,
    worker_facts,
)
from hetero_airflow.web.page.forecasts import FRESH_S, Forecasts, StartForecast
from hetero_airflow.web.page.placement_view import MAX_AHEAD, Placement, placement
from hetero_airflow.web.page.profile_file import fetch_profile, is_profile_of
from hetero_airflow.web.page.queue_view import QueueTable, queue_table
from hetero_airflow.web.page.timeline_view import Timeline, timeline
from hetero_airflow.web.page.usage_view import Subject, UsageReader, UsageTable, usage_period, usage_table
from hetero_airflow.web.permissions import (
    may_drain,
    may_see_fleet,
    readable_dags,
    require_access_to_drains,
    require_access_to_jobs,
    require_access_to_task,
)

MAX_ROWS = 100
MAX_HOURS = 7 * 24
MAX_AUTHOR = 100
"""Characters of a user's name in the reason of a drain."""

MAX_ORDER_BYTES = 16 << 10
"""A target and a reason of the greatest lengths need 10 kB if JSON escapes each character."""

Offset = Annotated[int, Query(ge=0, le=10**6)]
Limit = Annotated[int, Query(ge=1, le=MAX_ROWS)]
Name = Annotated[str, Query(min_length=1, max_length=320)]
Wanted = Annotated[FleetFilter, Depends()]

_IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}


class DrainOrder(BaseModel):
    """A worker, or a device of it, that a person drains or undrains."""

    model_config = ConfigDict(extra="forbid")

    target: str = Field(min_length=1, max_length=640)
    """``WORKER`` or ``WORKER/DEVICE``."""
    reason: str = Field(default="", max_length=MAX_REASON)
    move: bool = False
    """Whether running tasks save and continue elsewhere."""


async def read_order(request: Request) -> DrainOrder:
    """The order in the body of a request. The dependencies before it have checked the user.

    :raises HttpRequestRefused: the body is too long, or takes too long
    :raises RequestValidationError: it is no order
    """
    body = await read_bounded(request, MAX_ORDER_BYTES, "to drain or undrain")
    try:
        return DrainOrder.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_input=False)) from error


Order = Annotated[DrainOrder, Depends(read_order)]
_ORDER_SCHEMA = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": DrainOrder.model_json_schema()}}}
}


class DrainDone(BaseModel):
    """What changed."""

    target: str
    holds: int
    """Holds that were placed or lifted."""


class PageRoutes:
    """The handlers. They block on the database, so FastAPI runs them in threads."""

    def __init__(self, fleet: FleetReader) -> None:
        self._fleet = fleet
        self._forecasts = Forecasts(fleet)
        self._usage = UsageReader(fleet.engine)

    def router(self) -> APIRouter:
        """The routes to the handlers."""
        router = APIRouter(prefix="/page")
        jobs, task = [Depends(require_access_to_jobs)], [Depends(require_access_to_task)]
        drains = [Depends(check) for check in (require_access_to_jobs, require_access_to_drains, require_json)]
        add = router.add_api_route
        add("/summary", self.summary, response_model=FleetSummary, dependencies=jobs)
        add("/map", self.map, response_model=FleetMap, dependencies=jobs)
        add("/devices", self.devices, response_model=FleetTable, dependencies=jobs)
        add("/queue", self.queue, response_model=QueueTable, dependencies=jobs)
        add("/timeline", self.timeline, response_model=Timeline, dependencies=jobs)
        add("/usage", self.usage, response_model=UsageTable, dependencies=jobs)
        add("/worker", self.worker, response_model=WorkerFacts, dependencies=jobs)
        add("/placement/{dag_id}", self.placement, response_model=Placement, dependencies=task)
        add("/profile/{dag_id}", self.profile, dependencies=task)
        add("/forecast/{dag_id}", self.forecast, response_model=StartForecast, dependencies=task)
        add("/drain", self.drain, methods=["POST"], dependencies=drains, openapi_extra=_ORDER_SCHEMA)
        add("/undrain", self.undrain, methods=["POST"], dependencies=drains, openapi_extra=_ORDER_SCHEMA)
        add("/openapi.json", self.schema, dependencies=jobs, include_in_schema=False)
        add("/hetero.js", self.bundle, include_in_schema=False)
        add("/devices.svg", self.icon, include_in_schema=False)
        self._router = router
        return router

    def summary(self, request: Request) -> Response:
        """All workers and devices in figures, and the values that the filters offer."""
        snapshot, now = self._fleet.store.snapshot(), datetime.now(UTC)
        facts = (snapshot.sequence, readings_period(now))
        return conditional(request, facts, lambda: fleet_summary(snapshot, self._fleet.readings(now)))

    def map(self, request: Request, wanted: Wanted) -> Response:
        """The matching workers and the states of their devices, for the map."""
        snapshot, now = self._fleet.store.snapshot(), datetime.now(UTC)
        facts = (snapshot.sequence, readings_period(now))
        return conditional(request, facts, lambda: fleet_map(snapshot, self._fleet.readings(now), wanted))

    def devices(
        self, request: Request, user: GetUserDep, wanted: Wanted, offset: Offset = 0, limit: Limit = MAX_ROWS
    ) -> Response:
        """A page of the matching devices."""
        snapshot, now, readable = self._fleet.store.snapshot(), datetime.now(UTC), readable_dags(user)
        facts = (snapshot.sequence, readings_period(now), readable)

        def make() -> FleetTable:
            return fleet_table(snapshot, self._fleet.readings(now), wanted, readable, offset, limit)

        return conditional(request, facts, make)

    def queue(self, request: Request, user: GetUserDep, offset: Offset = 0, limit: Limit = MAX_ROWS) -> Response:
        """A page of the waiting requests of the reader's DAGs, in the order of the last cycle."""
        snapshot, readable = self._fleet.store.snapshot(), readable_dags(user)
        with read_transaction(self._fleet.engine()) as connection:
            newest = read_newest_decision_id(connection)

        def make() -> QueueTable:
            with read_transaction(self._fleet.engine()) as connection:
                waiting = read_waiting_requests(connection, readable, offset, limit)
            return queue_table(snapshot, waiting, self._fleet.wanted_workers(snapshot).types, readable)

        return conditional(request, (snapshot.sequence, newest, readable), make)

    def timeline(
        self,
        request: Request,
        user: GetUserDep,
        wanted: Wanted,
        hours: Annotated[float, Query(gt=0, le=MAX_HOURS)] = 6,
        offset: Offset = 0,
        limit: Limit = 50,
    ) -> Response:
        """A page of the matching devices with their leases of the past hours."""
        plain, now, readable = self._fleet.store.snapshot(), datetime.now(UTC), readable_dags(user)

        def make() -> Timeline:
            snapshot = self._fleet.snapshot_with_estimates()
            fleet = filtered_fleet(snapshot, self._fleet.readings(now), wanted)
            devices = [(worker, device.id) for worker, devices_of_worker in fleet for device, _ in devices_of_worker]
            page, since = devices[offset : offset + limit], now - timedelta(hours=hours)
            with read_transaction(self._fleet.engine()) as connection:
                leases = read_leases_since(connection, since, {worker.id for worker, _ in page})
            return timeline(snapshot, page, len(devices), leases, readable, since, now)

        facts = (plain.sequence, readings_period(now), readable)
        return conditional(request, facts, make)

    def usage(
        self, request: Request, user: GetUserDep, by: Subject = "dag", days: Annotated[int, Query(ge=1, le=400)] = 30
    ) -> Response:
        """What tasks held, or what devices did, in the past days."""
        now, readable = datetime.now(UTC), readable_dags(user)
        facts = (usage_period(now), readable)
        usage = partial(self._usage.read, days, now)
        owners = partial(read_dag_owners, self._fleet.engine())
        return conditional(request, facts, lambda: usage_table(usage(), by, readable, days, now, owners))

    def worker(self, request: Request, user: GetUserDep, id: Name) -> Response:
        """All that is known of one worker."""
        plain, now, readable = self._fleet.store.snapshot(), datetime.now(UTC), readable_dags(user)
        if all(worker.id != id for worker in plain.workers):
            detail = f"No worker has the id {id[:100]!r}. The map shows the current workers."
            raise HTTPException(HTTPStatus.NOT_FOUND, detail)

        def make() -> WorkerFacts:
            snapshot = self._fleet.snapshot_with_estimates()
            worker = next(worker for worker in snapshot.workers if worker.id == id)
            last_seen_at = self._fleet.store.last_seen().get(id)
            return worker_facts(
                snapshot, self._fleet.readings(now), worker, last_seen_at, readable, now, may_drain(user)
            )

        facts = (plain.sequence, readings_period(now), readable, may_drain(user))
        return conditional(request, facts, make)

    def placement(
        self, request: Request, user: GetUserDep, dag_id: str, run_id: Name, task_id: Name, map_index: int = -1
    ) -> Response:
        """Why a task instance waits, or why it got its devices."""
        now, readable, sees_fleet = datetime.now(UTC), readable_dags(user), may_see_fleet(user)
        plain = self._fleet.store.snapshot()
        history = self._fleet.store.request_history(dag_id, run_id, task_id, map_index)
        live = history.leases[-1].id if history is not None and history.leases else None
        progress = self._fleet.progress(history.pending, live) if history is not None else None

        def make() -> Placement:
            with read_transaction(self._fleet.engine()) as connection:
                tries = read_task_leases(connection, dag_id, run_id, task_id, map_index)
                queue = read_waiting_requests(connection, readable, 0, MAX_AHEAD)
            snapshot = self._fleet.snapshot_with_estimates()
            return placement(history, tries, progress, snapshot, queue, readable, now, sees_fleet)

        decided = history.decisions[0]["decided_at"] if history is not None and history.decisions else ""
        facts = (plain.sequence, decided, progress, readable, sees_fleet)
        return conditional(request, facts, make)

    def profile(self, dag_id: str, run_id: Name, task_id: Name, map_index: int = -1) -> Response:
        """The trace of some steps that a task instance has kept, for ui.perfetto.dev."""
        history = self._fleet.store.request_history(dag_id, run_id, task_id, map_index)
        lease_id = history.leases[-1].id if history is not None and history.leases else None
        progress = self._fleet.progress(history.pending, lease_id) if history is not None else None
        key = progress.profile if progress is not None else None
        if key is None or not is_profile_of(key, dag_id, task_id, run_id):
            raise HTTPException(HTTPStatus.NOT_FOUND, "The last run of this task has kept no profile.")
        with tempfile.TemporaryDirectory(prefix="hetero-airflow-profile-") as folder:
            problem = fetch_profile(key, Path(folder) / "profile")
            if problem:
                raise HTTPException(HTTPStatus.BAD_GATEWAY, problem)
            file = (Path(folder) / "profile").open("rb")  # the reader may go away, and the folder is not needed then
        headers = {
            "Cache-Control": "private, no-store",
            "Content-Disposition": 'attachment; filename="profile.json.gz"',
            "X-Content-Type-Options": "nosniff",
        }
        return StreamingResponse(_read_and_close(file), media_type="application/gzip", headers=headers)

    def forecast(
        self, request: Request, user: GetUserDep, dag_id: str, run_id: Name, task_id: Name, map_index: int = -1
    ) -> Response:
        """When a waiting task instance starts, and a change that would start it now."""
        now, readable = datetime.now(UTC), readable_dags(user)
        history = self._fleet.store.request_history(dag_id, run_id, task_id, map_index)
        if history is None:
            return conditional(request, (), lambda: StartForecast(made_at=now))
        facts = (int(now.timestamp() // FRESH_S), history.state, readable)
        return conditional(request, facts, lambda: self._forecasts.forecast(history, readable, now))

    def drain(self, user: GetUserDep, order: Order) -> DrainDone:
        """Place a hold on a worker or a device."""
        store, now = self._fleet.store, datetime.now(UTC)
        snapshot = store.snapshot()
        author = f" (by {user.get_name()[:MAX_AUTHOR]}, in Airflow's UI)"
        reason = (order.reason.strip() or "no reason given")[: MAX_REASON - len(author)] + author
        with _as_http_error():
            hold = drain_hold(find_target(order.target, snapshot), snapshot, moves=order.move, reason=reason, now=now)
        store.record([HoldPlaced(hold)], now)
        return DrainDone(target=order.target, holds=1)

    def undrain(self, order: Order) -> DrainDone:
        """Lift the holds of a worker or a device."""
        store = self._fleet.store
        snapshot = store.snapshot()
        with _as_http_error():
            events = undrain_events(find_target(order.target, snapshot), snapshot)
        store.record(events, datetime.now(UTC))
        return DrainDone(target=order.target, holds=len(events))

    def schema(self) -> dict[str, Any]:
        """The OpenAPI schema of these routes, from which the page's types are made."""
        return get_openapi(title="hetero_airflow page", version="1", routes=self._router.routes)

    def bundle(self, _user: GetUserDep) -> Response:
        """The built page, for every user who is logged in."""
        return Response(BUNDLE.read_bytes(), media_type="text/javascript", headers=_IMMUTABLE)

    def icon(self, _user: GetUserDep) -> Response:
        """The icon in Airflow's navigation."""
        return Response(ICON.read_bytes(), media_type="image/svg+xml", headers=_IMMUTABLE)


def _read_and_close(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while part := file.read(1 << 20):
            yield part


@contextmanager
def _as_http_error() -> Iterator[None]:
    """Answer 422 with the text of a `HeteroError`."""
    try:
        yield
    except HeteroError as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error


def require_json(request: Request) -> None:
    """Refuse a form, which another web site could send with the user's cookie.

    :raises HTTPException: the body is not declared as JSON
    """
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send JSON with Content-Type: application/json.")


def conditional(request: Request, facts: tuple[object, ...], make: Callable[[], BaseModel]) -> Response:
    """The answer as JSON; 304 without a body if the browser has the answer that these facts give.

    :param facts: all that the answer depends on, beside the address; their texts are compared
    :param make: makes the answer; it is called only if the browser does not have it
    """
    texts = (str(sorted(fact)) if isinstance(fact, set) else str(fact) for fact in (request.url, *facts))
    digest = hashlib.blake2b("\0".join(texts).encode(), digest_size=12).hexdigest()
    etag = f'W/"{digest}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Vary": "Cookie, Authorization"}
    if request.headers.get("If-None-Match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(make().model_dump_json(), media_type="application/json", headers=headers)
