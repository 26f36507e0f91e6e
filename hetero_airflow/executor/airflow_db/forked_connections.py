"""Connections to the database that processes inherit which a scheduler forks, such as LocalExecutor's.

The kernel closes a socket when the last process that has it ends, and these processes outlive a killed scheduler with
their tasks. So the session of a scheduler that was killed in the middle of a transaction would keep its locks until
the last of them ends, for PostgreSQL sees a client that is silent: no other scheduler could queue a task.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine, event


def close_in_children(engine: Engine) -> None:
    """Let no process that is forked from now on keep a connection of this engine open."""
    if engine.dialect.name != "postgresql":
        return
    engine.dispose()  # what was opened before, a process may have inherited already
    connections: weakref.WeakSet[Any] = weakref.WeakSet()
    sockets: list[int] = []

    @event.listens_for(engine, "connect")
    def note(connection: Any, _record: object) -> None:
        connections.add(connection)

    def find() -> None:
        sockets.clear()
        for connection in connections:
            with suppress(Exception):  # the driver's own, of a connection that is closed
                sockets.append(connection.fileno())

    def let_go() -> None:
        """In the child: a null device in each one's place, so that its number means nothing else to the driver."""
        null = os.open(os.devnull, os.O_RDWR)
        for socket in sockets:
            os.dup2(null, socket, inheritable=False)
        os.close(null)

    os.register_at_fork(before=find, after_in_child=let_go)
