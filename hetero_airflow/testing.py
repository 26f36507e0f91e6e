"""Builders and doubles for tests of this package and of plug-ins for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.errors import StoreError
from hetero_airflow.model.device import Device, device_class
from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.lease import Claim, Lease, LeaseState
from hetero_airflow.model.plan import Account, Place, Plan
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.run import Run, RunEnd
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.runtime.task_lease import TaskLease
from hetero_airflow.store.store import CommitResult, LeaseMove, Store, StoreEvent
from hetero_airflow.units import parse_bytes

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The time at which `FakeClock` starts."""


class FakeClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: datetime = EPOCH) -> None:
        self._now = now

    def now(self) -> datetime:
        """The time it was last moved to."""
        return self._now

    def advance(self, seconds: float) -> datetime:
        """Move on, and tell the new time."""
        self._now += timedelta(seconds=seconds)
        return self._now


def a_device(id: str = "GPU-0", model: str = "a100-sxm4-40gb", memory: str = "40GiB", **fields: Any) -> Device:
    """A healthy NVIDIA GPU, unless told otherwise."""
    given = {"vendor": "nvidia", "kind": "gpu", "index": 0, "driver": "550.54.15", "capability": "8.0"} | fields
    return Device(id=id, model=model, memory_bytes=parse_bytes(memory), **given)


def a_cpu(cores: int = 8, memory: str = "64GiB", **fields: Any) -> Device:
    """The CPU device of a host."""
    given = {"vendor": "generic", "kind": "cpu", "model": "x86-64", "index": 0} | fields
    return Device(id="cpu", memory_bytes=parse_bytes(memory), cores=tuple(range(cores)), **given)


def a_worker(id: str = "worker-a", devices: tuple[Device, ...] | None = None, **fields: Any) -> Worker:
    """A worker with a CPU of 8 cores and two A100, unless told otherwise."""
    if devices is None:
        devices = (a_cpu(), a_device("GPU-0"), a_device("GPU-1", index=1))
    given = {"host": id, "runtime": {"cuda": "12.4", "torch": "2.9.0", "python": "3.12.1"}} | fields
    return Worker(id=id, devices=devices, **given)


def a_pending(id: str = "r1", device: object = "gpu", at_s: float = 0, **fields: Any) -> PendingRequest:
    """A request submitted `at_s` seconds after `EPOCH`; what `DeviceRequest.parse` takes goes to the request."""
    own = {name: fields.pop(name) for name in list(fields) if name in PendingRequest.__dataclass_fields__}
    request = DeviceRequest.parse(device, **fields)
    given = {"dag_id": "dag", "run_id": "run", "task_id": id} | own
    return PendingRequest(id=id, request=request, submitted_at=EPOCH + timedelta(seconds=at_s), **given)


def a_place(request_id: str = "r1", worker_id: str = "worker-a", **milli_by_device: int) -> Place:
    """A placement that claims thousandths of devices: ``a_place("r1", **{"GPU-0": 1000})``."""
    claims = tuple(Claim(device_id=device_id, share_milli=milli) for device_id, milli in milli_by_device.items())
    return Place(request_id, worker_id, 0, claims, Account("test", "as the test says"))


def a_lease(request_id: str = "r1", worker_id: str = "worker-a", ago_s: float = 3600, **milli_by_device: int) -> Lease:
    """A lease granted `ago_s` seconds before `EPOCH`, its task running: ``a_lease("r1", **{"GPU-0": 1000})``."""
    claims = tuple(Claim(device_id=device_id, share_milli=milli) for device_id, milli in milli_by_device.items())
    granted_at = EPOCH - timedelta(seconds=ago_s)
    return Lease(
        id=f"{request_id}.1", request_id=request_id, worker_id=worker_id, alternative=0, claims=claims, token=1,
        state=LeaseState.ACTIVE, granted_at=granted_at, expires_at=EPOCH + timedelta(hours=1),
    )  # fmt: skip


def leased(snapshot: Snapshot, *leases: tuple[Lease, PendingRequest]) -> Snapshot:
    """The snapshot with these leases and their holders, and what they use."""
    usage = dict(snapshot.usage)
    for lease, _ in leases:
        for claim in lease.claims:
            before = usage.get((lease.worker_id, claim.device_id), DeviceUsage())
            usage[lease.worker_id, claim.device_id] = DeviceUsage(
                before.share_milli + claim.share_milli, before.memory_bytes + claim.memory_bytes, lease.granted_at
            )
    holders = {pending.id: pending for _, pending in leases}
    all_leases = (*snapshot.leases, *(lease for lease, _ in leases))
    return replace(snapshot, usage=usage, leases=all_leases, holders={**snapshot.holders, **holders})


def a_task_lease(**fields: Any) -> TaskLease:
    """What a task is told of two whole A100, unless told otherwise."""
    given = {
        "id": "lease-1",
        "token": 3,
        "worker": "host-a",
        "vendor": "nvidia",
        "kind": "gpu",
        "model": "a100-sxm4-40gb",
        "ids": ("GPU-b", "GPU-a"),
        "indexes": (2, 5),
        "memory_bytes": 40 * 2**30,
        "share": None,
    }
    return TaskLease(**given | fields)


def a_run(**fields: Any) -> Run:
    """A run of a minute on one A100 that finished at `EPOCH`, unless told otherwise."""
    given: dict[str, Any] = {
        "sequence": 1,
        "request_id": "r1",
        "task": ("dag", "task"),
        "asked": DeviceRequest.parse("gpu").alternatives[0],
        "device_class": "nvidia/a100-sxm4-40gb",
        "devices": 1,
        "held_s": 60.0,
        "end": RunEnd.FINISHED,
        "ended_at": EPOCH,
    }
    return Run(**given | fields)


def move_lease(store: Store, lease_id: str, token: int, to: LeaseState, now: datetime, cause: str = "") -> Lease:
    """Move one lease, and raise what the store says against it."""
    outcome = store.move([LeaseMove(lease_id, token, to, cause)], now)[0]
    if isinstance(outcome, StoreError):
        raise outcome
    return outcome


class FakeEngine:
    """An engine that takes note of what it is given, and says what it is told to say."""

    def __init__(self) -> None:
        self.dispatched: list[Lease] = []
        self.failing: set[str] = set()
        """Ids of requests whose dispatch raises."""
        self.far: set[str] = set()
        """Ids of workers that are out of reach."""
        self.slots: int | None = None
        self.foreign: set[str] = set()
        """Ids of requests that another scheduler has."""
        self.alive: dict[str, Liveness] = {}
        """Request id → what is known of its process; UNKNOWN where absent."""

    def dispatch(self, lease: Lease) -> None:
        """Take note of the lease, or raise."""
        if lease.request_id in self.failing:
            raise RuntimeError("the engine is told to fail")
        self.dispatched.append(lease)

    def is_ours(self, request_id: str) -> bool:
        """False for those told to be foreign."""
        return request_id not in self.foreign

    def reaches(self, worker_id: str) -> bool:
        """False for those told to be far."""
        return worker_id not in self.far

    def open_slots(self) -> int | None:
        """What it was told."""
        return self.slots

    def liveness(self, lease: Lease) -> Liveness:
        """What it was told."""
        return self.alive.get(lease.request_id, Liveness.UNKNOWN)


class RejectingStore:
    """A store whose `commit` refuses placements, as if another scheduler had been faster (Nomad's RejectPlan).

    :param refusals: request id → how many of its placements are refused before one is let through
    """

    def __init__(self, store: Store, refusals: Mapping[str, int]) -> None:
        self._store = store
        self.left = dict(refusals)

    def commit(self, plan: Plan, now: datetime, expires_at: datetime, news: Sequence[StoreEvent] = ()) -> CommitResult:
        """Grant what is not to be refused."""
        refused = tuple(place.request_id for place in plan.places if self.left.get(place.request_id, 0) > 0)
        self.left |= {request_id: self.left[request_id] - 1 for request_id in refused}
        kept = Plan(tuple(decision for decision in plan.decisions if decision.request_id not in refused))
        commit = self._store.commit(kept, now, expires_at, news)
        return CommitResult(commit.leases, (*commit.refused, *refused))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


_MODELS = (
    ("nvidia", "gpu", "a100-sxm4-40gb", "40GiB"),
    ("nvidia", "gpu", "a100-sxm4-80gb", "80GiB"),
    ("nvidia", "gpu", "tesla-v100-sxm2-16gb", "16GiB"),
    ("amd", "gpu", "mi300x", "192GiB"),
    ("ascend", "npu", "910b3", "64GiB"),
)
_TEXTS = (
    "gpu", "gpu:2", "gpu:4", "gpu:0.5", "gpu:0.25", "a100", "a100-80gb:2", "amd:1", "910b", "npu:2", "mig-1g.10gb",
    "cpu", "cpu:3", "h100", "acme/x1:2",
)  # fmt: skip


def devices(index: int) -> SearchStrategy[Device]:
    """Hypothesis strategy: an accelerator, sometimes unwell, simulated, in MIG mode's pieces, of an odd driver."""
    from hypothesis import strategies as st

    def build(model: tuple[str, str, str, str], form: str, driver: str | None, node: int | None) -> Device:
        vendor, kind, name, memory = model
        fields: dict[str, Any] = {"vendor": vendor, "kind": kind, "driver": driver, "numa_node": node}
        if form == "unwell":
            fields |= {"leasable": False, "problem": "too hot"}
        elif form == "mig":
            memory, fields = "10GiB", fields | {"partition": "1g.10gb", "parent": "GPU-mig"}
        elif form == "simulated":
            fields |= {"simulated": True}
        peers = (f"GPU-{index ^ 1}",) if form == "linked" else ()
        return a_device(f"GPU-{index}", name, memory, index=index, peers=peers, **fields)

    forms = st.sampled_from(["well", "well", "linked", "linked", "unwell", "mig", "simulated"])
    drivers = st.sampled_from([None, "550.54.15", "535.1", "r550 (beta)"])
    return st.builds(build, st.sampled_from(_MODELS), forms, drivers, st.sampled_from([None, 0, 1]))


def workers(id: str) -> SearchStrategy[Worker]:
    """Hypothesis strategy: a worker of 0 to 5 accelerators, sometimes without a CPU, sometimes lost."""
    from hypothesis import strategies as st

    def build(found: list[Device], cores: int, labels: dict[str, str], state: WorkerState) -> Worker:
        cpu = (a_cpu(cores, "32GiB"),) if cores else ()
        return a_worker(id, (*cpu, *found), labels=labels, state=state)

    found = st.integers(0, 5).flatmap(lambda number: st.tuples(*(devices(index) for index in range(number))))
    labels = st.sampled_from([{}, {"zone": "eu"}])
    states = st.sampled_from([WorkerState.ONLINE] * 5 + [WorkerState.LOST])
    return st.builds(build, found, st.sampled_from([0, 2, 4, 8]), labels, states)


def requests() -> SearchStrategy[DeviceRequest]:
    """Hypothesis strategy: one to three alternatives, in order or not, with and without further conditions."""
    from hypothesis import strategies as st

    beside = st.sampled_from([
        {}, {}, {}, {"cpus": 2}, {"cpus": 3, "host_memory": "12GiB"}, {"host_memory": "20GiB"}, {"memory": "20GiB.."},
        {"memory": "..20GiB"}, {"driver": ">=540"}, {"runtime": {"cuda": ">=12"}}, {"runtime": {"jax": ">=0.4"}},
        {"labels": {"zone": "eu"}},
    ])  # fmt: skip

    def build(texts: list[str], extra: dict[str, Any], is_ordered: bool, priority: str) -> DeviceRequest:
        allowed = {"host_memory", "runtime", "labels"}
        words = [
            {"device": text} | {k: v for k, v in extra.items() if not text.startswith("cpu") or k in allowed}
            for text in texts
        ]
        parsed = DeviceRequest.parse(words, priority=priority)
        return parsed.model_copy(update={"is_ordered": is_ordered})

    texts = st.lists(st.sampled_from(_TEXTS), min_size=1, max_size=3)
    return st.builds(build, texts, beside, st.booleans(), st.sampled_from(["urgent", "medium", "medium", "low"]))


def holdings(worker: Worker, number: int) -> SearchStrategy[tuple[Lease, PendingRequest]]:
    """Hypothesis strategy: a lease on some devices of a worker, and the request that holds it."""
    from hypothesis import strategies as st

    def build(
        devices: list[Device], part: float, ago_s: float, saved: bool, state: LeaseState, priority: str, served: float
    ) -> tuple[Lease, PendingRequest]:
        before = {device_class(devices[0]): served} if served else {}
        holder = a_pending(
            f"held-{worker.id}-{number}", f"gpu:{len(devices)}", -ago_s - served, priority=priority,
            dag_id="abc"[number % 3], task_id="xy"[number % 2], attained_service_s=before,
        )  # fmt: skip
        claims = tuple(
            Claim(device_id=d.id, share_milli=int(d.capacity_milli * part), memory_bytes=int(d.memory_bytes * part))
            for d in devices
        )
        lease = a_lease(holder.id, worker.id, ago_s)
        saved_at = lease.granted_at + timedelta(seconds=ago_s / 2) if saved else None
        return lease.model_copy(update={"claims": claims, "state": state, "saved_at": saved_at}), holder

    states = [LeaseState.ACTIVE] * 4 + [LeaseState.GRANTED, LeaseState.PREEMPTED, LeaseState.EXPIRED]
    chosen = st.lists(st.sampled_from(worker.devices), min_size=1, max_size=3, unique_by=lambda device: device.id)
    parts, ages = st.sampled_from([0.25, 0.5, 1, 1, 1]), st.sampled_from([1.0, 400.0, 5000.0])
    priorities = st.sampled_from(["high", "medium", "low", "low"])
    served = st.sampled_from([0.0, 0.0, 700.0])
    return st.builds(build, chosen, parts, ages, st.booleans(), st.sampled_from(states), priorities, served)


def estimates() -> SearchStrategy[Estimates]:
    """Hypothesis strategy: what is known of some of the tasks of the requests that `snapshots` has."""
    from hypothesis import strategies as st

    @st.composite
    def build(draw: st.DrawFn) -> Estimates:
        known = draw(st.lists(st.sampled_from([(dag, task) for dag in "abc" for task in "xy"]), unique=True))
        speeds = {task: {"nvidia/a100-sxm4-40gb": draw(st.sampled_from([0.5, 1.0, 3.0]))} for task in known}
        works = {task: Interval(*sorted(draw(st.tuples(*[st.floats(1, 1e5)] * 3)))) for task in known}
        return Estimates(speeds, works, tuple(sorted(draw(st.lists(st.floats(1, 1e5), max_size=4)))))

    return build()


def snapshots(max_workers: int = 4, max_pending: int = 8, *, can_preempt: bool = False) -> SearchStrategy[Snapshot]:
    """Hypothesis strategy: a store at some moment.

    What is leased is held by live leases, and of some devices more than there is is used. Some gangs of two
    hold leases; none waits.

    :param can_preempt: whether its leases can be taken back
    """
    from hypothesis import strategies as st

    plain = st.builds(
        lambda text, priority: DeviceRequest.parse(text, priority=priority),
        st.sampled_from(["gpu", "gpu:2", "gpu:0.5"]),
        st.sampled_from(["urgent", "high", "medium"]),
    )
    asked = st.one_of(requests(), plain)

    @st.composite
    def build(draw: st.DrawFn) -> Snapshot:
        present = tuple(draw(workers(f"worker-{number}")) for number in range(draw(st.integers(0, max_workers))))
        snapshot = Snapshot(7, present, can_preempt=can_preempt, estimates=draw(estimates()))
        held: list[tuple[Lease, PendingRequest]] = []
        for worker in present:
            for number in range(draw(st.integers(0, 4)) if worker.devices else 0):
                lease, holder = draw(holdings(worker, number))
                after = leased(snapshot, *held, (lease, holder))
                if all(_is_within(after, worker, claim.device_id) for claim in lease.claims):
                    token = len(held) + 1
                    held.append((lease.model_copy(update={"token": token, "id": f"{holder.id}.{token}"}), holder))
        if len(held) > 1 and draw(st.booleans()):
            held[:2] = [(lease, replace(holder, gang="g", gang_size=2)) for lease, holder in held[:2]]
        snapshot = leased(snapshot, *held)
        usage = dict(snapshot.usage)
        for worker in present:
            for device in worker.devices:
                if (worker.id, device.id) not in usage and draw(st.sampled_from([False, False, False, True])):
                    part = draw(st.sampled_from([0.25, 1, 1.5]))
                    milli, memory = int(device.capacity_milli * part), int(device.memory_bytes * part)
                    usage[worker.id, device.id] = DeviceUsage(milli, memory, EPOCH - timedelta(seconds=1))
        pending = tuple(
            PendingRequest(
                f"r{number}",
                draw(asked),
                EPOCH - timedelta(seconds=draw(st.sampled_from([-3, -2, -1, 0, 900]))),
                draw(st.integers(1, 3)),
                draw(st.sampled_from(["a", "b", "c"])),
                task_id=draw(st.sampled_from(["x", "y"])),
                attained_service_s=draw(st.sampled_from([{}, {}, {"nvidia/a100-sxm4-40gb": 40.0}])),
            )
            for number in range(draw(st.integers(0, max_pending)))
        )
        dag_tokens = draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 9)))
        return replace(snapshot, usage=usage, pending=pending, dag_tokens=dag_tokens)

    return build()


def _is_within(snapshot: Snapshot, worker: Worker, device_id: str) -> bool:
    device = next(device for device in worker.devices if device.id == device_id)
    used = snapshot.used(worker.id, device_id)
    return used.share_milli <= device.capacity_milli and used.memory_bytes <= device.memory_bytes
