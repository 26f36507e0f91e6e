"""Two workers of a gang in two threads, on torch's own store."""

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

pytest.importorskip("torch")

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError

from hetero_airflow.runtime.gang import rendezvous
from hetero_airflow.runtime.gang.rendezvous import GangRendezvous


@pytest.fixture
def workers():
    """Both, the leader first; the socket was open before its store was there."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as threads:
        port = listener.getsockname()[1]
        timeout = timedelta(seconds=10)
        client = threads.submit(TCPStore, "127.0.0.1", port, is_master=False, timeout=timeout, wait_for_workers=False)
        leader = TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=socket.socket.detach(listener),
        )
        stores = (leader, client.result())
        yield [GangRendezvous(store, "g", rank, 2, "127.0.0.1") for rank, store in enumerate(stores)]


def meet(workers):
    with ThreadPoolExecutor(2) as threads:
        coming = [threads.submit(worker.next_rendezvous) for worker in workers]
        return [future.result(30) for future in coming]


def test_each_worker_keeps_its_rank_and_all_get_the_same_address(workers):
    for _ in range(2):
        results = meet(workers)
        assert [(result.rank, result.world_size) for result in results] == [(0, 2), (1, 2)]
        addresses = {
            (result.bootstrap_store_info.master_addr, result.bootstrap_store_info.master_port) for result in results
        }
        assert len(addresses) == 1


def test_values_of_a_round_are_not_in_the_store_of_the_next_round(workers):
    first = meet(workers)
    first[0].store.set("left", "behind")
    assert first[1].store.get("left") == b"behind"  # it waits: `set` returns before the leader has the value
    assert not meet(workers)[1].store.check(["left"])


def test_a_worker_in_the_next_round_is_seen_by_the_others(workers):
    meet(workers)
    assert [worker.num_nodes_waiting() for worker in workers] == [0, 0]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(workers[1].next_rendezvous)
        while workers[0].num_nodes_waiting() == 0:
            assert not waiting.done()
        workers[0].next_rendezvous()
        assert waiting.result(30).rank == 1
    assert [worker.num_nodes_waiting() for worker in workers] == [0, 0]


def test_a_worker_that_waits_too_long_raises_an_error(workers, monkeypatch):
    monkeypatch.setattr(rendezvous, "JOIN_TIMEOUT_S", 0.1)
    with pytest.raises(RendezvousTimeoutError, match="not all 2 workers of gang g joined"):
        workers[1].next_rendezvous()


class Gone:
    """The store of a leader that is no more."""

    def add(self, key, number):
        from torch.distributed import DistNetworkError

        raise DistNetworkError("Connection reset by peer")


def test_without_the_leader_no_round_begins():
    worker = GangRendezvous(Gone(), "g", 1, 2, "127.0.0.1")
    assert worker.num_nodes_waiting() == 0
    with pytest.raises(RendezvousConnectionError, match="the leader of gang g is gone"):
        worker.next_rendezvous()
