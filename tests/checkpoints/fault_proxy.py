"""A real HTTP proxy before an object store, which answers with errors, cuts off, or is slow, as a test selects."""

import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

ERRORS = {
    "403": b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
    "404": b"<Error><Code>NoSuchUpload</Code><Message>The specified upload does not exist.</Message></Error>",
    "500": b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>",
    "503": b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
}
NOT_IMPLEMENTED = b"<Error><Code>NotImplemented</Code><Message>No such feature.</Message></Error>"
UNKNOWN_HEADERS = {"no aws-chunked": ("Content-Encoding", "aws-chunked"), "no conditions": ("If-None-Match", "*")}
HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "server", "date"}

Fault = Callable[[str, str, int], str | None]
"""Method, path and number of a request → what goes wrong with it."""


class FaultProxy(ThreadingHTTPServer):
    """Forwards requests to the store, except for the faults that `fault` selects."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = urlsplit(upstream).netloc
        self.fault: Fault = lambda method, path, number: None
        self.requests: list[tuple[str, str, int, int]] = []
        """Method, path, status, bytes of the answer."""
        self.lock = threading.Lock()
        self.number = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore it: the tests include connections that the client gave up."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is sent in two pieces
    server: FaultProxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def content(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def forward(self) -> None:
        content = self.content()
        with self.server.lock:
            self.server.number += 1
            fault = self.server.fault(self.command, self.path, self.server.number)
        if fault == "dropped":
            self.close_connection = True
            return
        header, text = UNKNOWN_HEADERS.get(fault or "", ("", ""))
        if header in self.headers and text in self.headers[header]:
            self.answer(501, {}, NOT_IMPLEMENTED)
            return
        if fault in ERRORS:
            self.answer(int(fault), {}, ERRORS[fault])
            return
        if fault == "slow":
            time.sleep(0.2)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        if fault == "ignored":
            headers = {name: value for name, value in headers.items() if "if-" not in name.lower()}
        with contextlib.closing(http.client.HTTPConnection(self.server.upstream)) as upstream:
            upstream.request(self.command, self.path, content, headers)
            answer = upstream.getresponse()
            body = answer.read()
        kept_headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        length = int(answer.getheader("Content-Length") or 0) if self.command == "HEAD" else len(body)
        if fault == "answer lost":
            self.close_connection = True
            return
        if fault == "flipped" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        if fault == "cut off":
            self.close_connection = True
            body = body[: len(body) // 2]
        self.answer(answer.status, kept_headers, body, length)

    def answer(self, status: int, headers: dict[str, str], body: bytes, length: int | None = None) -> None:
        self.server.requests.append((self.command, self.path, status, len(body)))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
    setattr(Handler, f"do_{method}", Handler.forward)


@contextlib.contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A proxy that runs in a thread."""
    proxy = FaultProxy(upstream)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield proxy
    proxy.shutdown()
    thread.join()
    proxy.server_close()
