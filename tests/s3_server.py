"""A server of S3: moto's, with the one promise of S3 that it does not keep."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer


@contextmanager
def running_s3() -> Iterator[str]:
    """The address of a server.

    moto 5 compares the ETag and writes in two steps, so of two racing writers both can win (1 of 2,000 times on two
    busy cores). S3 does it in one. Here a lock does.
    """
    put_object, lock = S3Response.put_object, Lock()

    def put_alone(response: S3Response) -> object:
        with lock:
            return put_object(response)

    S3Response.put_object = put_alone  # type: ignore[method-assign, assignment]
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        S3Response.put_object = put_object  # type: ignore[method-assign]
