"""Where the torchruns of a gang meet: each worker's one at the place that the gang gave it, all of them or none.

Registered with torchrun as the rendezvous backend ``hetero``. torchrun's own c10d backend numbers the workers by
address and process id, so that the ranks of a task would be other ones after each start, and its static backend never
starts the ranks of the other workers again when one has failed. Here a worker whose ranks failed goes into the next
round, the others find that somebody waits there and follow, and a round begins when all have come.

The store is torch's TCPStore, in the leader's torchrun, on a socket that was open before the others were told of it.
"""

from __future__ import annotations

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
"""As torchrun's own: for so long a worker waits for the others. Who is told to stop meanwhile, stops."""

_CONNECT_S = 5.0
"""One attempt; between two of them a signal is heard."""

_LOOK_S = 0.02


class GangRendezvous(RendezvousHandler):
    """The meetings of one worker of a gang with the others.

    :param rank: of this worker in the gang
    :param size: how many workers there are
    :param address: of this worker, where the ranks of the others reach its rank 0
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
        """The gang."""
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for all workers of the gang.

        :raises RendezvousTimeoutError: they have not come in time
        :raises RendezvousConnectionError: the leader is gone
        """
        self._round += 1
        end = time.monotonic() + JOIN_TIMEOUT_S
        try:
            self._store.add(self._arrivals(self._round), 1)
            while self._store.add(self._arrivals(self._round), 0) < self._size:
                if time.monotonic() > end:
                    raise RendezvousTimeoutError(f"not all {self._size} workers of gang {self._run_id} have come")
                time.sleep(_LOOK_S)
            # of this round alone: what ranks of the round before had left in a store would mislead them
            own = PrefixStore(f"round-{self._round}", self._store)
            meeting = RendezvousStoreInfo.build(self._rank, own, self._address)
        except DistError as error:
            raise RendezvousConnectionError(f"the leader of gang {self._run_id} is gone") from error
        return RendezvousInfo(own, self._rank, self._size, meeting)

    def num_nodes_waiting(self) -> int:
        """How many workers have gone on to the next round."""
        try:
            return int(self._store.add(self._arrivals(self._round + 1), 0))
        except DistError:  # the leader is gone: if that is no good end, the ranks find out, and the executor
            return 0

    def is_closed(self) -> bool:
        """Never: the gang is over with its leases."""
        return False

    def set_closed(self) -> None:
        """Nothing to do: see `is_closed`."""

    def shutdown(self) -> bool:
        """Nothing to do: the store ends with the leader's process."""
        return True

    @staticmethod
    def _arrivals(number: int) -> str:
        return f"arrived-{number}"


def register() -> None:
    """Make the backend known to torchrun; its ``--rdzv-conf`` takes ``rank``, and the leader's ``listen_fd``."""
    rendezvous_handler_registry.register(BACKEND, _created)


def _created(parameters: RendezvousParameters) -> GangRendezvous:
    rank = parameters.get_as_int("rank")
    assert rank is not None
    store = _joined_store(parameters, parameters.get_as_int("listen_fd"))
    address = parameters.local_addr or parameters.endpoint.rpartition(":")[0]
    return GangRendezvous(store, parameters.run_id, rank, parameters.max_nodes, address)


def _joined_store(parameters: RendezvousParameters, listen_fd: int | None) -> TCPStore:
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
            time.sleep(_LOOK_S)
        else:
            store.set_timeout(timeout)
            return store
