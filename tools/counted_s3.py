"""moto's S3 as a real HTTP server that records each request, and can fail on purpose."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class RecordedRequest:
    """A request that arrived."""

    at: float
    method: str
    path: str
    authorization: str


class CountedS3:
    """An S3 server in this process. `requests` has the requests that arrived.

    If `fail` is an HTTP status, the server answers with it. Each answer takes `delay_s`.

    :param clock: the clock for the times of the requests
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.requests: list[RecordedRequest] = []
        self.fail: int | None = None
        self.delay_s = 0.0
        self.clock = clock
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        self.requests.append(
            RecordedRequest(
                self.clock(),
                environ["REQUEST_METHOD"],
                environ["PATH_INFO"],
                environ.get("HTTP_AUTHORIZATION", ""),
            )
        )
        time.sleep(self.delay_s)
        if self.fail is not None:
            start_response(f"{self.fail} Out of order", [("Content-Length", "0")])
            return []
        return self._moto(environ, start_response)

    def client(self) -> Any:
        """A boto3 client of this server."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            region_name=CREDENTIALS["AWS_DEFAULT_REGION"],
        )

    def serve(self) -> None:
        """Answer until `close`."""
        self._server.serve_forever()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def running_s3() -> Iterator[CountedS3]:
    """Run a server in a thread."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = CountedS3()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()
