"""A server that accepts connections and never answers, like one whose host has stopped."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.waiting import eventually


@contextlib.contextmanager
def silent_server() -> "Iterator[SilentServer]":
    """One that is stopped at the end.

    Threads of `ServiceCalls` that were left alone with their call then see that it fails. They end first, since a
    client tries again after a random time, and Hypothesis refuses tests while another thread uses `random`.
    """
    before = set(threading.enumerate())
    server = SilentServer()
    try:
        yield server
    finally:
        server.stop()
        eventually(lambda: not any(t.name.startswith("calls to ") for t in set(threading.enumerate()) - before))


class SilentServer:
    """Listens on 127.0.0.1, and keeps every connection open."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Close all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.connections.append(self._listener.accept()[0])
