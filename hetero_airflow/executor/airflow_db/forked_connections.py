"""Database connections that forked processes inherit from a scheduler, such as those of LocalExecutor.

The kernel closes a socket when the last process that has it ends. Forked processes and their tasks outlive a killed
scheduler. If the scheduler was killed in the middle of a transaction, PostgreSQL sees a client that is idle, and keeps
the locks of the session until the last of these processes ends. Meanwhile no other scheduler can queue a task.
"""

import os
import weakref
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine, event


def close_in_children(engine: Engine) -> None:
    """Close the connections of this engine in every process that is forked from now on."""
    if engine.dialect.name != "postgresql":
        return
    engine.dispose()  # a process may have inherited the open ones already
    connections: weakref.WeakSet[Any] = weakref.WeakSet()
    sockets: list[int] = []

    @event.listens_for(engine, "connect")
    def add(connection: Any, _record: object) -> None:
        connections.add(connection)

    def collect_sockets() -> None:
        sockets.clear()
        for connection in connections:
            with suppress(Exception):  # the driver raises its own error for a closed connection
                sockets.append(connection.fileno())

    def replace_sockets() -> None:
        """In the child: put a null device in place of each socket, so that the driver finds no other file there."""
        null = os.open(os.devnull, os.O_RDWR)
        for socket in sockets:
            os.dup2(null, socket, inheritable=False)
        os.close(null)

    os.register_at_fork(before=collect_sockets, after_in_child=replace_sockets)
