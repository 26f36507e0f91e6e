"""The agent's connection to the API server: one request at a time, each with its own token. Blocks."""

import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ValidationError

from hetero_airflow.agent.protocol import (
    ENROLMENT_PATH,
    HEARTBEAT_PATH,
    INVENTORY_PATH,
    PREFIX,
    Enrolment,
    Heartbeat,
    InventoryReport,
    RefusalCode,
    ServerReply,
)
from hetero_airflow.agent.tokens import public_key_hex, request_digest, sign_token
from hetero_airflow.errors import HeteroError, IdentityError, shorten

TIMEOUT_S = 5.0
"""Well below [hetero] worker_timeout_s, so that no worker is lost because one request hangs."""


class ServerUnreachable(HeteroError):
    """The API server can't be reached, or can't answer now. Another try may succeed."""


class RefusedByServer(IdentityError):
    """The API server refused a request; `code` says why, None if the answer is not from hetero_airflow."""

    def __init__(self, code: RefusalCode | None, asked: str, *, found: str, remedy: str) -> None:
        self.code = code
        super().__init__(asked, found=found, remedy=remedy)


class ServerConnection:
    """Speaks for one worker. Its methods raise `ServerUnreachable` without an answer, `RefusedByServer` for a refusal.

    :param url: of Airflow's API server, as browsers reach it: ``https://airflow.example:8080``
    """

    def __init__(self, url: str, worker_id: str, key: Ed25519PrivateKey) -> None:
        self._url = url.rstrip("/")
        self._worker_id, self._key = worker_id, key
        self._instance = secrets.token_hex(16)
        self._nonce = 0
        self._http = httpx.Client(base_url=f"{self._url}{PREFIX}", timeout=TIMEOUT_S)

    def enrol(self, secret: str) -> None:
        """Send the public key to the server. May be repeated."""
        body = Enrolment(worker=self._worker_id, public_key=public_key_hex(self._key))
        self._send("POST", ENROLMENT_PATH, body, secret)

    def send_inventory(self, report: InventoryReport) -> ServerReply:
        """Send the inventory."""
        return self._exchange("PUT", INVENTORY_PATH, report)

    def send_heartbeat(self, heartbeat: Heartbeat) -> ServerReply:
        """Send a heartbeat."""
        return self._exchange("POST", HEARTBEAT_PATH, heartbeat)

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _exchange(self, method: str, path: str, body: BaseModel) -> ServerReply:
        answer = self._send(method, path, body)
        try:
            return ServerReply.model_validate_json(answer.content)
        except ValidationError as error:
            raise self._down(f"an answer that is not from hetero_airflow: {shorten(answer.text)}") from error

    def _send(self, method: str, path: str, body: BaseModel, bearer: str = "") -> httpx.Response:
        content = body.model_dump_json(exclude_defaults=True).encode()
        token = bearer or self._sign(request_digest(method, path, content))
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            answer = self._http.request(method, path, content=content, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._down(f"{type(error).__name__}: {error}") from error
        if answer.is_success:
            return answer
        raise self._refusal(answer)

    def _sign(self, request: str) -> str:
        self._nonce = max(self._nonce + 1, time.time_ns() // 1000)
        now = datetime.now(UTC)
        return sign_token(
            self._key, worker=self._worker_id, instance=self._instance, nonce=self._nonce, request=request, now=now
        )

    def _refusal(self, answer: httpx.Response) -> ServerUnreachable | RefusedByServer:
        body: dict[str, Any] = {}
        with suppress(ValueError):
            body = answer.json()
        code = body.get("code") if isinstance(body, dict) else None
        if answer.status_code >= 500 or code == RefusalCode.FLOODING:
            return self._down(f"HTTP {answer.status_code}: {shorten(answer.text)}")
        if code not in set(RefusalCode):
            return RefusedByServer(
                None,
                f"{answer.request.method} {self._url}{PREFIX}",
                found=f"HTTP {answer.status_code}: {shorten(answer.text)}",
                remedy="Give the address of Airflow's API server, with hetero-airflow installed there",
            )
        return RefusedByServer(
            RefusalCode(code), f"worker {self._worker_id}", found=str(body.get("found")), remedy=str(body.get("remedy"))
        )

    def _down(self, found: str) -> ServerUnreachable:
        remedy = "The agent tries again; check that the API server runs and is reachable from this host"
        return ServerUnreachable(f"Airflow's API server at {self._url}", found=found, remedy=remedy)
