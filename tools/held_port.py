"""A port of 127.0.0.1 that nobody else takes, for servers that can't choose one and report it."""

import contextlib
import random
import socket
import weakref
from pathlib import Path

_FIRST, _END = 10_000, 32_768
_TRIES = 1000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class HeldPort:
    """A port below those that the kernel gives to connections, so that none of these takes it, not even for a moment.

    No other `HeldPort` of this host has the same number until this one is released or its process ends: each binds an
    abstract Unix socket with the number in its name.

    >>> HeldPort().number < 32768
    True

    :raises OSError: no port is left
    """

    def __init__(self) -> None:
        lock = socket.socket(socket.AF_UNIX)
        self.number = _take(lock)
        self.release = weakref.finalize(self, lock.close)
        """Lets others have the port."""


def _take(lock: socket.socket) -> int:
    ephemeral = int(_EPHEMERAL.read_text().split()[0])
    # a host may give nearly all ports to connections: then one may be taken, for a moment
    end = min(ephemeral, _END) if ephemeral >= _FIRST + _TRIES else _END
    for number in random.sample(range(_FIRST, end), _TRIES):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", number))
            lock.bind(f"\0hetero-airflow-port-{number}")
            return number
    lock.close()
    raise OSError(f"{_TRIES} ports from {_FIRST} to {end} were tried; found none that is free")
