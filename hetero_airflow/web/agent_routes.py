"""The routes for workers' agents. The token and the body of a request must name the same worker."""

import asyncio
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from sqlalchemy import Engine

from hetero_airflow.agent.protocol import (
    ENROLMENT_PATH,
    HEARTBEAT_PATH,
    INVENTORY_PATH,
    MAX_HEARTBEAT_BYTES,
    MAX_INVENTORY_BYTES,
    MAX_SMALL_BYTES,
    DeviceError,
    Enrolment,
    Heartbeat,
    InventoryReport,
    RefusalCode,
    ServerReply,
    read_body,
)
from hetero_airflow.agent.tokens import TokenClaims, TokenRefused, hash_secret, read_public_key, request_digest
from hetero_airflow.health.error_classes import ErrorClass, classify_xid, ecc_text
from hetero_airflow.health.transitions import HealthChanged, ObservedError, error_changes
from hetero_airflow.model.hold import Hold, HoldKind, reclaimed_hold
from hetero_airflow.store.sql.agent_messages import Admission, AgentMessage
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.store.store import HoldPlaced, WorkerAlive, WorkerSeen
from hetero_airflow.web.bodies import read_bounded
from hetero_airflow.web.http_refusals import HttpRequestRefused, RefusalLog
from hetero_airflow.web.key_ring import KeyRing
from hetero_airflow.web.write_batcher import WriteBatcher

ASKED = "a request of a worker's agent"
MAX_ERROR_AGE = timedelta(days=1)
"""An older error gets this age, and an error of the future counts as of now, so no wrong clock holds a device forever.

A fatal error counts as of now too: otherwise the quarantine of an error that is reported late would be over.
"""
MAX_ENROLLING = 8
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_POD_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
"""A JSON web token, which a service account has."""
_REFUSALS: dict[Admission, tuple[RefusalCode, str, str]] = {
    Admission.REPLAYED: (RefusalCode.REPLAYED, "one that was accepted before", "Sign a new token for each request"),
    Admission.REVOKED: (
        RefusalCode.UNKNOWN_KEY,
        "a key that was revoked",
        "Enrol the agent again: `airflow hetero enroll`",
    ),
    Admission.SUPERSEDED: (
        RefusalCode.SUPERSEDED,
        "another agent that started later with the same key",
        "Run one agent per worker, each with its own key",
    ),
}

M = TypeVar("M", bound=BaseModel)


class AgentRoutes:
    """The handlers of one process."""

    def __init__(self, engine: Callable[[], Engine], refusals: RefusalLog) -> None:
        self._engine = engine
        self._refusals = refusals
        self._ring = KeyRing(lambda since: self._keys.changes(since))
        self._batcher = WriteBatcher(lambda messages, now: self._keys.take(messages, now))
        self._enrolling = 0

    @cached_property
    def _keys(self) -> WorkerKeys:
        return WorkerKeys(self._engine())

    def router(self) -> APIRouter:
        """The routes to the handlers."""
        router = APIRouter()
        router.add_api_route(ENROLMENT_PATH, self.enrol, methods=["POST"], response_model=None)
        router.add_api_route(INVENTORY_PATH, self.inventory, methods=["PUT"], response_model=None)
        router.add_api_route(HEARTBEAT_PATH, self.heartbeat, methods=["POST"], response_model=None)
        return router

    async def enrol(self, request: Request) -> Response:
        """Store the public key of the agent that sends a worker's one-time secret."""
        secret = _bearer(request)
        is_pod = _POD_TOKEN.fullmatch(secret) is not None
        if not is_pod and not _SECRET.fullmatch(secret):
            raise _unauthenticated("no secret or token that `airflow hetero` has printed")
        if self._enrolling >= MAX_ENROLLING:
            raise _refused(RefusalCode.UNAVAILABLE, f"{MAX_ENROLLING} enrolments at present", "Try again")
        self._enrolling += 1
        try:
            await (self._enrol_pod(request, secret) if is_pod else self._enrol_by_secret(request, secret))
        finally:
            self._enrolling -= 1
        return Response(status_code=204)

    async def _enrol_by_secret(self, request: Request, secret: str) -> None:
        hashed = hash_secret(secret)
        if not await asyncio.to_thread(self._keys.knows_secret, hashed):
            raise _refused(
                RefusalCode.ENROLMENT, "a secret that enrols no worker", "Make a new one with `airflow hetero enroll`"
            )
        enrolment = await self._read_enrolment(request)
        key = (enrolment.worker, hashed, enrolment.public_key)
        await asyncio.to_thread(self._keys.enrol, *key, datetime.now(UTC))

    async def _enrol_pod(self, request: Request, token: str) -> None:
        try:
            from hetero_airflow.web import pod_identity
        except ImportError:
            found, remedy = "no package kubernetes on the API server", "Install hetero-airflow[kubernetes] there"
            raise _refused(RefusalCode.ENROLMENT, found, remedy) from None
        pod = await asyncio.to_thread(pod_identity.review, token, pod_identity.allowed_accounts())
        enrolment = await self._read_enrolment(request)
        pod_identity.check_name(pod, enrolment.worker)
        key = (enrolment.worker, pod.joined_by, enrolment.public_key)
        await asyncio.to_thread(self._keys.enrol_pod, *key, datetime.now(UTC))

    async def _read_enrolment(self, request: Request) -> Enrolment:
        enrolment = self._parse(Enrolment, await read_bounded(request, MAX_SMALL_BYTES, ASKED), "")
        read_public_key(enrolment.public_key)
        return enrolment

    async def inventory(self, request: Request) -> Response:
        """Record a worker's inventory."""
        claims, key, body = await self._read(request, INVENTORY_PATH, MAX_INVENTORY_BYTES)
        report = self._parse(InventoryReport, body, claims.sub)
        _check_own(claims, report.worker.id)
        event = WorkerSeen(report.worker, report.telemetry, report.leases)
        return await self._write(AgentMessage(claims.sub, key, claims.nonce, claims.ins, event))

    async def heartbeat(self, request: Request) -> Response:
        """Record a heartbeat, with which a worker may say that it leaves."""
        claims, key, body = await self._read(request, HEARTBEAT_PATH, MAX_HEARTBEAT_BYTES)
        heartbeat = self._parse(Heartbeat, body, claims.sub)
        _check_own(claims, heartbeat.worker)
        alive = WorkerAlive(claims.sub, heartbeat.telemetry, heartbeat.leases, heartbeat.data)
        now, leaving, reclaimed = datetime.now(UTC), None, None
        if heartbeat.is_leaving:
            cause, returns = "its agent was told to stop", "an agent starts there again"
            leaving = HoldPlaced(Hold(claims.sub, "", HoldKind.LEAVING, cause, now, returns))
        if heartbeat.reclaimed:
            reclaimed = HoldPlaced(reclaimed_hold(claims.sub, heartbeat.reclaimed, now))
        errors = health_changes(claims.sub, heartbeat.errors, now)
        return await self._write(
            AgentMessage(claims.sub, key, claims.nonce, claims.ins, alive, leaving, reclaimed, errors)
        )

    async def _read(self, request: Request, path: str, limit: int) -> tuple[TokenClaims, str, bytes]:
        """The token, its key, and the body. The body is read only after the token is verified."""
        claims, key = await self._ring.read(_bearer(request), datetime.now(UTC))
        self._refusals.check_flooding(claims.sub)
        body = await read_bounded(request, limit, ASKED, claims.sub)
        if claims.req != request_digest(request.method, path, body):
            found = "a token that was signed for another request"
            raise TokenRefused(RefusalCode.FOREIGN, found=found, remedy="Sign a new token for each request")
        return claims, key, body

    def _parse(self, model: type[M], body: bytes, worker: str) -> M:
        try:
            return read_body(model, body)
        except ValueError as error:
            remedy = "Run the agent and the API server with one version of hetero-airflow"
            raise _refused(RefusalCode.INVALID, str(error), remedy, worker) from error

    async def _write(self, message: AgentMessage) -> Response:
        reply = await self._batcher.write(message)
        if reply.outcome is not Admission.TAKEN:
            code, found, remedy = _REFUSALS[reply.outcome]
            raise _refused(code, found, remedy, message.worker_id)
        body = ServerReply(
            inventory=reply.digest,
            leases=reply.leases,
            end=reply.end,
            unknown=reply.unknown,
            contested=reply.contested,
        )
        return Response(body.model_dump_json(exclude_defaults=True), media_type="application/json")


def health_changes(worker_id: str, errors: Iterable[DeviceError], now: datetime) -> tuple[HealthChanged, ...]:
    """How errors change the health of the worker's devices, by the same rules as on a scheduler's own host.

    A repeated error counts once.
    """
    return tuple(error_changes(worker_id, (_observed(error, now) for error in errors)))


def _observed(error: DeviceError, now: datetime) -> ObservedError:
    if error.xid is not None:
        error_class, text = classify_xid(error.xid)
    else:
        error_class, text = ErrorClass.FATAL, ecc_text(error.ecc_errors or 0)
    at = now if error_class is ErrorClass.FATAL else min(max(error.at, now - MAX_ERROR_AGE), now)
    return ObservedError(error.device_id, error_class, text, at, source=f"{text} at {error.at.isoformat()}")


def _check_own(claims: TokenClaims, worker_id: str) -> None:
    if worker_id != claims.sub:
        raise _refused(
            RefusalCode.FOREIGN, "a request for another worker", "Send requests for your own worker", claims.sub
        )


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise _unauthenticated("no bearer token")
    return token


def _refused(code: RefusalCode, found: str, remedy: str, worker: str = "") -> HttpRequestRefused:
    return HttpRequestRefused(code, ASKED, found=found, remedy=remedy, worker=worker)


def _unauthenticated(problem: str) -> HttpRequestRefused:
    return _refused(RefusalCode.UNAUTHENTICATED, problem, "Enrol the agent: `airflow hetero enroll`, or `token`")
