"""A worker comes and goes while a scheduler takes its leases back: in any order, no device serves two tasks."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, WorkerAlive, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker, move_lease

WORKER = a_worker(devices=(a_cpu(), a_device("GPU-0")))
FOREVER = EPOCH + timedelta(days=1)


class Host(RuleBasedStateMachine):
    """A host with one GPU, its agent, and a scheduler, which communicate only through the store."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.store.record([WorkerSeen(WORKER, leases=frozenset())], EPOCH)
        self.requests = 0
        self.processes: dict[str, Lease] = {}
        """Leases whose processes run."""
        self.ending: set[str] = set()
        self.doomed: list[tuple[Lease, int]] = []
        """Leases that the scheduler is about to take back, and the number of the agent's reports since."""
        self.spoken = 0

    @property
    def is_online(self) -> bool:
        return self.store.snapshot().workers[0].state is WorkerState.ONLINE

    @precondition(lambda self: self.is_online and not self.store.snapshot().leases)
    @rule()
    def place(self) -> None:
        """The store grants what fits, and the process starts."""
        self.requests += 1
        name = f"r{self.requests}"
        self.store.record([RequestSubmitted(a_pending(name))], EPOCH)
        for lease in self.store.commit(Plan((a_place(name, **{"GPU-0": 1000}),)), EPOCH, FOREVER).leases:
            self.processes[lease.id] = lease

    @precondition(lambda self: self.processes)
    @rule(is_rare=st.integers(0, 4))
    def finish(self, is_rare) -> None:
        """A task ends by itself, and its lease ends unless it was taken back before."""
        if is_rare:
            return
        lease_id, lease = self.processes.popitem()
        if lease_id in {held.id for held in self.store.snapshot().leases}:
            move_lease(self.store, lease.id, lease.token, LeaseState.RELEASED, EPOCH)

    @rule()
    def speak(self) -> None:
        """The agent reports its leases by a heartbeat or an inventory, and learns which are over."""
        reported = frozenset(self.processes)
        kind = WorkerAlive("worker-a", leases=reported) if self.is_online else WorkerSeen(WORKER, leases=reported)
        self.store.record([kind], EPOCH)
        self.spoken += 1
        held = {lease.id for lease in self.store.snapshot().leases}
        self.ending = set(self.processes) - held

    @precondition(lambda self: self.ending)
    @rule()
    def heed(self) -> None:
        """Processes that the agent has to end are gone some time later."""
        for lease_id in self.ending:
            self.processes.pop(lease_id, None)
        self.ending = set()

    @precondition(lambda self: self.is_online)
    @rule()
    def lose(self) -> None:
        """The network breaks for longer than the liveness timeout."""
        self.store.record([WorkerLost("worker-a")], EPOCH)

    @precondition(lambda self: not self.is_online)
    @rule()
    def doom(self) -> None:
        """Like `engines.remote.remote_liveness`, finds leases on a lost worker that its agent does not report."""
        heartbeat = self.store.heartbeats().get("worker-a")
        reported = heartbeat.leases if heartbeat else frozenset()
        self.doomed = [(lease, self.spoken) for lease in self.store.snapshot().leases if lease.id not in reported]

    @precondition(lambda self: self.doomed)
    @rule()
    def take_back(self) -> None:
        """It takes them back before the agent has reported twice since: there are 5 s between its reports."""
        for lease, spoken in self.doomed:
            if self.spoken - spoken < 2 and lease.id in {held.id for held in self.store.snapshot().leases}:
                move_lease(self.store, lease.id, lease.token, LeaseState.EVICTED, EPOCH)
        self.doomed = []

    @invariant()
    def no_device_serves_two(self) -> None:
        assert len(self.processes) <= 1, sorted(self.processes)


def test_no_device_serves_two_tasks_however_a_worker_comes_and_goes():
    limits = settings(max_examples=500, stateful_step_count=30, deadline=None, derandomize=True)
    run_state_machine_as_test(Host, settings=limits)
