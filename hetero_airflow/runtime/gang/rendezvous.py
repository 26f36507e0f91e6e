"""The rendezvous of the torchruns of a gang: all workers join, each with the rank that the gang gave it.

It is registered with torchrun as the backend ``hetero``. torchrun's c10d backend numbers workers by address and process
id, so the ranks of a task would change with each start. Its static backend never restarts the ranks of other workers
when one fails. Here, a worker whose ranks failed joins the next round; the other workers see that it waits there and
follow. A round begins when all workers have joined.

The store is torch's TCPStore in the leader's torchrun. Its socket is open before the other workers learn its address.
"""

import time
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)

BACKEND = "hetero"

JOIN_TIMEOUT_S = 600.0
"""How long a worker waits for the others, as in torchrun. A worker with a notice stops earlier."""

_CONNECT_S = 5.0
"""The timeout of one attempt to connect; signals are handled between attempts."""

_POLL_S = 0.02


class GangRendezvous(RendezvousHandler):
    """The rendezvous of one worker of a gang.

    :param rank: the rank of this worker in the gang
    :param size: the number of workers
    :param address: where the ranks of other workers reach this worker's rank 0
    """

    def __init__(self, store: Any, run_id: str, rank: int, size: int, address: str) -> None:
        self._store = store
        self._run_id = run_id
        self._rank = rank
        self._size = size
        self._address = address
        self._round = 0

    def get_backend(self) -> str:
        """The name in torchrun's registry."""
        return BACKEND

    def get_run_id(self) -> str:
        """The name of the gang."""
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for all workers of the gang.

        :raises RendezvousTimeoutError: not all workers join in time
        :raises RendezvousConnectionError: the leader is gone
        """
        self._round += 1
        end = time.monotonic() + JOIN_TIMEOUT_S
        try:
            self._store.add(self._arrivals(self._round), 1)
            while self._store.add(self._arrivals(self._round), 0) < self._size:
                if time.monotonic() > end:
                    raise RendezvousTimeoutError(f"not all {self._size} workers of gang {self._run_id} joined")
                time.sleep(_POLL_S)
            # each round has its own prefix, since values from ranks of an earlier round would be wrong
            store = PrefixStore(f"round-{self._round}", self._store)
            info = RendezvousStoreInfo.build(self._rank, store, self._address)
        except DistError as error:
            raise RendezvousConnectionError(f"the leader of gang {self._run_id} is gone") from error
        return RendezvousInfo(store, self._rank, self._size, info)

    def num_nodes_waiting(self) -> int:
        """The number of workers that wait in the next round."""
        try:
            return int(self._store.add(self._arrivals(self._round + 1), 0))
        except DistError:  # the leader is gone; if it failed, the ranks and the executor notice it
            return 0

    def is_closed(self) -> bool:
        """Never; the gang ends with its leases."""
        return False

    def set_closed(self) -> None:
        """Do nothing, see `is_closed`."""

    def shutdown(self) -> bool:
        """Do nothing; the store ends with the leader's process."""
        return True

    @staticmethod
    def _arrivals(number: int) -> str:
        return f"arrived-{number}"


def register() -> None:
    """Register the backend with torchrun. Its ``--rdzv-conf`` has ``rank``, and for the leader ``listen_fd``."""
    rendezvous_handler_registry.register(BACKEND, _create)


def _create(parameters: RendezvousParameters) -> GangRendezvous:
    rank = parameters.get_as_int("rank")
    assert rank is not None
    store = _join_store(parameters, parameters.get_as_int("listen_fd"))
    address = parameters.local_addr or parameters.endpoint.rpartition(":")[0]
    return GangRendezvous(store, parameters.run_id, rank, parameters.max_nodes, address)


def _join_store(parameters: RendezvousParameters, listen_fd: int | None) -> TCPStore:
    host, _, port = parameters.endpoint.rpartition(":")
    timeout = timedelta(seconds=JOIN_TIMEOUT_S)
    if listen_fd is not None:
        return TCPStore(
            host, int(port), is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listen_fd
        )
    end = time.monotonic() + JOIN_TIMEOUT_S
    while True:
        try:
            attempt = timedelta(seconds=_CONNECT_S)
            store = TCPStore(host, int(port), is_master=False, timeout=attempt, wait_for_workers=False)
        except DistError as error:
            if time.monotonic() > end:
                raise RendezvousConnectionError(f"no leader of gang {parameters.run_id} at {host}") from error
            time.sleep(_POLL_S)
        else:
            store.set_timeout(timeout)
            return store
