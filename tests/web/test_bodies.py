"""How bodies are read. `test_every_route.py` sends bodies without a login to every route of a real API server."""

import asyncio
import socket
from collections.abc import Iterator

import pytest
from fastapi import Request

from hetero_airflow.agent.protocol import HEARTBEAT_PATH, PREFIX, RefusalCode
from hetero_airflow.web import bodies
from hetero_airflow.web.bodies import read_bounded
from hetero_airflow.web.http_refusals import HttpRequestRefused
from tests.api_server import make_app

ABC = {"type": "http.request", "body": b"abc", "more_body": True}
END = {"type": "http.request", "body": b"", "more_body": False}


def read(messages: list[dict], limit: int = 9) -> bytes:
    """What `read_bounded` makes of these messages, after which none comes."""
    left: Iterator[dict] = iter(messages)

    async def receive() -> dict:
        return next(left, None) or await asyncio.Event().wait()

    return asyncio.run(read_bounded(Request({"type": "http"}, receive), limit, "a test"))


def test_fastapi_reads_no_body_itself():
    """It would read all of it before it calls the dependencies that check the caller."""
    app = make_app(lambda: pytest.fail("no route is called here"))
    assert [route.path for route in app.routes if route.body_field is not None] == []


def test_a_body_within_its_limit_is_read():
    assert read([ABC, ABC, ABC, END]) == b"abcabcabc"


@pytest.mark.parametrize(
    ("messages", "code", "found"),
    [
        ([ABC] * 4, RefusalCode.TOO_LARGE, "a body of more than 9 bytes"),
        ([ABC] * 3, RefusalCode.INVALID, "a body that took longer than 0.05 s"),
        ([ABC, {"type": "http.disconnect"}], RefusalCode.INVALID, "a body that ends too early"),
    ],
)
def test_a_body_without_an_end_is_refused(monkeypatch, messages, code, found):
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.05)
    with pytest.raises(HttpRequestRefused) as caught:
        read(messages)
    assert (caught.value.code, caught.value.found) == (code, found)


def test_a_worker_that_sends_slowly_gets_an_answer_and_loses_its_connection(server, speaker, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.05)
    token = speaker().token("POST", HEARTBEAT_PATH, b"")
    head = f"POST {PREFIX}{HEARTBEAT_PATH} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: 9\r\n\r\nabc".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 422 ")
    assert b"took longer" in answer
