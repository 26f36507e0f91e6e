"""The routes for workers' agents. A worker speaks for itself alone: its token, and what it says, name the same one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime
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
    Enrolment,
    Heartbeat,
    InventoryReport,
    RefusalCode,
    ServerReply,
    read_body,
)
from hetero_airflow.agent.tokens import TokenClaims, TokenRefused, hash_secret, read_public_key, request_digest
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.store.sql.agent_messages import Admission, AgentMessage, AgentReply
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.store.store import HoldPlaced, WorkerAlive, WorkerSeen
from hetero_airflow.web.device_errors import health_changes
from hetero_airflow.web.key_ring import KeyRing
from hetero_airflow.web.refusals import RefusalLog, RequestRefused
from hetero_airflow.web.write_batcher import WriteBatcher

BODY_TIMEOUT_S = 30.0
MAX_ENROLLING = 8
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_REFUSALS: dict[Admission, tuple[RefusalCode, str, str]] = {
    Admission.REPLAYED: (RefusalCode.REPLAYED, "one that was taken before", "Sign a new token for each request"),
    Admission.REVOKED: (
        RefusalCode.UNKNOWN_KEY,
        "a key that was revoked",
        "Enrol the agent anew: `airflow hetero enroll`",
    ),
    Admission.SUPERSEDED: (
        RefusalCode.SUPERSEDED,
        "another agent that began later with the same key",
        "Run one agent a worker, and give each a key of its own",
    ),
}

M = TypeVar("M", bound=BaseModel)


class AgentRoutes:
    """The handlers; what they share is one process's."""

    def __init__(self, engine: Callable[[], Engine], refusals: RefusalLog) -> None:
        self._engine = engine
        self._refusals = refusals
        self._ring = KeyRing(lambda since: self._keys.changes(since))
        self._desk = WriteBatcher(lambda told, now: self._keys.take(told, now))
        self._enrolling = 0

    @cached_property
    def _keys(self) -> WorkerKeys:
        return WorkerKeys(self._engine())

    def router(self) -> APIRouter:
        """All of them."""
        router = APIRouter()
        router.add_api_route(ENROLMENT_PATH, self.enrol, methods=["POST"], response_model=None)
        router.add_api_route(INVENTORY_PATH, self.inventory, methods=["PUT"], response_model=None)
        router.add_api_route(HEARTBEAT_PATH, self.heartbeat, methods=["POST"], response_model=None)
        return router

    async def enrol(self, request: Request) -> Response:
        """Take an agent's public key for the worker whose one-time secret it bears."""
        secret = _bearer(request)
        if not _SECRET.fullmatch(secret):
            raise _unauthenticated("no enrolment secret")
        if self._enrolling >= MAX_ENROLLING:
            raise _refused(RefusalCode.UNAVAILABLE, f"{MAX_ENROLLING} others that enrol now", "Try again")
        self._enrolling += 1
        try:
            hashed = hash_secret(secret)
            if not await asyncio.to_thread(self._keys.knows_secret, hashed):
                raise _refused(RefusalCode.ENROLMENT, "a secret that enrols no worker", "Ask for a new one")
            enrolment = self._parse(Enrolment, await _read_bounded(request, MAX_SMALL_BYTES), "")
            read_public_key(enrolment.public_key)
            told = (enrolment.worker, hashed, enrolment.public_key, datetime.now(UTC))
            await asyncio.to_thread(self._keys.enrol, *told)
        finally:
            self._enrolling -= 1
        return Response(status_code=204)

    async def inventory(self, request: Request) -> Response:
        """Take a worker's inventory."""
        claims, key, body = await self._read(request, INVENTORY_PATH, MAX_INVENTORY_BYTES)
        report = self._parse(InventoryReport, body, claims.sub)
        _check_own(claims, report.worker.id)
        return await self._tell(
            AgentMessage(
                claims.sub, key, claims.nonce, claims.ins, WorkerSeen(report.worker, report.telemetry, report.leases)
            )
        )

    async def heartbeat(self, request: Request) -> Response:
        """Take note that a worker is there, or that it leaves."""
        claims, key, body = await self._read(request, HEARTBEAT_PATH, MAX_HEARTBEAT_BYTES)
        beat = self._parse(Heartbeat, body, claims.sub)
        _check_own(claims, beat.worker)
        alive = WorkerAlive(claims.sub, beat.telemetry, beat.leases)
        leaving = _leaving(claims.sub) if beat.is_leaving else None
        errors = health_changes(claims.sub, beat.errors, datetime.now(UTC))
        return await self._tell(AgentMessage(claims.sub, key, claims.nonce, claims.ins, alive, leaving, errors))

    async def _read(self, request: Request, path: str, limit: int) -> tuple[TokenClaims, str, bytes]:
        """Who asks, with which key, and the body that the token is for; no body is read for a stranger."""
        claims, key = await self._ring.read(_bearer(request), datetime.now(UTC))
        self._refusals.check_flooding(claims.sub)
        body = await _read_bounded(request, limit, claims.sub)
        if claims.req != request_digest(request.method, path, body):
            raise TokenRefused(
                RefusalCode.FOREIGN,
                found="a token that was signed for another request",
                remedy="Sign one for each request",
            )
        return claims, key, body

    def _parse(self, model: type[M], body: bytes, worker: str) -> M:
        try:
            return read_body(model, body)
        except ValueError as error:
            remedy = "Send what this version of hetero-airflow reads"
            raise _refused(RefusalCode.INVALID, str(error), remedy, worker) from error

    async def _tell(self, told: AgentMessage) -> Response:
        answer = await self._desk.tell(told)
        if answer.outcome is not Admission.TAKEN:
            code, found, remedy = _REFUSALS[answer.outcome]
            raise _refused(code, found, remedy, told.worker_id)
        return Response(_server_reply(answer).model_dump_json(exclude_defaults=True), media_type="application/json")


def _server_reply(answer: AgentReply) -> ServerReply:
    return ServerReply(inventory=answer.digest, leases=answer.leases, end=answer.end, contested=answer.contested)


def _leaving(worker_id: str) -> HoldPlaced:
    back = "an agent starts there again"
    return HoldPlaced(Hold(worker_id, "", HoldKind.LEAVING, "its agent was told to stop", datetime.now(UTC), back))


def _check_own(claims: TokenClaims, worker_id: str) -> None:
    if worker_id != claims.sub:
        raise _refused(RefusalCode.FOREIGN, "one that speaks for another worker", "Speak for your own", claims.sub)


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise _unauthenticated("no bearer token")
    return token


async def _read_bounded(request: Request, limit: int, worker: str = "") -> bytes:
    """The body, unless it is longer than the limit, or comes too slowly."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _refused(RefusalCode.TOO_LARGE, f"a body of more than {limit} bytes", "Send less", worker)
    except TimeoutError as error:
        raise _refused(
            RefusalCode.INVALID, f"a body that took longer than {BODY_TIMEOUT_S:g} s", "Send it at once", worker
        ) from error
    return bytes(body)


def _refused(code: RefusalCode, found: str, remedy: str, worker: str = "") -> RequestRefused:
    return RequestRefused(code, "a request of a worker's agent", found=found, remedy=remedy, worker=worker)


def _unauthenticated(found: str) -> RequestRefused:
    return _refused(RefusalCode.UNAUTHENTICATED, found, "Enrol the agent: `airflow hetero enroll WORKER`")
