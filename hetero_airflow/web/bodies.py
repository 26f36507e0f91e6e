"""How the bodies of requests are read: after the caller is checked, up to a limit, and within a time.

No route declares a body to FastAPI, which would read and parse all of it before it calls a dependency. A route calls
`read_bounded` itself, once it knows the caller. Nothing is decompressed, so a compressed body is an invalid one.
"""

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hetero_airflow.agent.protocol import RefusalCode
from hetero_airflow.web.http_refusals import HttpRequestRefused

BODY_TIMEOUT_S = 30.0
"""For a whole body. A slow one costs no thread, and no more memory than its limit."""


async def read_bounded(request: Request, limit: int, asked: str, worker: str = "") -> bytes:
    """The body of a request whose caller is known.

    :param limit: its greatest length in bytes
    :param asked: what the request is, for the text of a refusal
    :param worker: the verified worker that sends it; empty for a user
    :raises HttpRequestRefused: the body is longer, takes too long, or ends too early
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    found = f"a body of more than {limit} bytes"
                    raise HttpRequestRefused(
                        RefusalCode.TOO_LARGE, asked, found=found, remedy="Send less", worker=worker
                    )
    except (TimeoutError, ClientDisconnect) as error:
        is_slow = isinstance(error, TimeoutError)
        found = f"a body that took longer than {BODY_TIMEOUT_S:g} s" if is_slow else "a body that ends too early"
        raise HttpRequestRefused(
            RefusalCode.INVALID, asked, found=found, remedy="Send it at once", worker=worker
        ) from error
    return bytes(body)


class UnreadBodies:
    """ASGI middleware that closes the connection after an answer that comes before the end of the request's body.

    Otherwise the server would receive the rest, however long it is, and drop it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_read = not any(_announces_body(*header) for header in scope["headers"])

        async def receive_part() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def send_part(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_read:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive_part, send_part)


def _announces_body(name: bytes, value: bytes) -> bool:
    return name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
