"""Hypothesis strategies for snapshots and their parts. Hypothesis is imported only when a strategy is made."""

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hetero_airflow.model.device import Device, device_class
from hetero_airflow.model.estimates import Estimates, Interval
from hetero_airflow.model.lease import Claim, Lease, LeaseState
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.testing.builders import EPOCH, a_cpu, a_device, a_lease, a_pending, a_worker, leased

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

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


def devices(index: int) -> "SearchStrategy[Device]":
    """An accelerator; sometimes unhealthy, simulated, a MIG instance, or with an unusual driver."""
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


def workers(id: str) -> "SearchStrategy[Worker]":
    """A worker with 0 to 5 accelerators; sometimes without a CPU, sometimes lost."""
    from hypothesis import strategies as st

    def build(accelerators: list[Device], cores: int, labels: dict[str, str], state: WorkerState) -> Worker:
        cpu = (a_cpu(cores, "32GiB"),) if cores else ()
        return a_worker(id, (*cpu, *accelerators), labels=labels, state=state)

    accelerators = st.integers(0, 5).flatmap(lambda number: st.tuples(*(devices(index) for index in range(number))))
    labels = st.sampled_from([{}, {"zone": "eu"}])
    states = st.sampled_from([WorkerState.ONLINE] * 5 + [WorkerState.LOST])
    return st.builds(build, accelerators, st.sampled_from([0, 2, 4, 8]), labels, states)


def requests() -> "SearchStrategy[DeviceRequest]":
    """A request with one to three alternatives, in order or not, with and without further conditions."""
    from hypothesis import strategies as st

    beside = st.sampled_from([
        {}, {}, {}, {"cpus": 2}, {"cpus": 3, "host_memory": "12GiB"}, {"host_memory": "20GiB"}, {"memory": "20GiB.."},
        {"memory": "..20GiB"}, {"driver": ">=540"}, {"runtime": {"cuda": ">=12"}}, {"runtime": {"jax": ">=0.4"}},
        {"labels": {"zone": "eu"}},
    ])  # fmt: skip

    def build(texts: list[str], extra: dict[str, Any], is_ordered: bool, priority: str) -> DeviceRequest:
        allowed = {"host_memory", "runtime", "labels"}
        options = [
            {"device": text} | {k: v for k, v in extra.items() if not text.startswith("cpu") or k in allowed}
            for text in texts
        ]
        parsed = DeviceRequest.parse(options, priority=priority)
        return parsed.model_copy(update={"is_ordered": is_ordered})

    texts = st.lists(st.sampled_from(_TEXTS), min_size=1, max_size=3)
    return st.builds(build, texts, beside, st.booleans(), st.sampled_from(["urgent", "medium", "medium", "low"]))


def holdings(worker: Worker, number: int) -> "SearchStrategy[tuple[Lease, PendingRequest]]":
    """A lease on some devices of a worker, and the request that holds it."""
    from hypothesis import strategies as st

    def build(
        devices: list[Device],
        part: float,
        ago_s: float,
        saved: bool,
        state: LeaseState,
        priority: str,
        attained_s: float,
    ) -> tuple[Lease, PendingRequest]:
        before = {device_class(devices[0]): attained_s} if attained_s else {}
        holder = a_pending(
            f"held-{worker.id}-{number}", f"gpu:{len(devices)}", -ago_s - attained_s, priority=priority,
            dag_id="abc"[number % 3], task_id="xy"[number % 2], attained_service_s=before,
        )  # fmt: skip
        claims = tuple(
            Claim(
                device_id=d.id, share_milli=int(d.capacity_milli * part), memory_bytes=int((d.memory_bytes or 0) * part)
            )
            for d in devices
        )
        lease = a_lease(holder.id, worker.id, ago_s)
        saved_at = lease.granted_at + timedelta(seconds=ago_s / 2) if saved else None
        return lease.model_copy(update={"claims": claims, "state": state, "saved_at": saved_at}), holder

    states = [LeaseState.ACTIVE] * 4 + [LeaseState.GRANTED, LeaseState.PREEMPTED, LeaseState.EXPIRED]
    chosen = st.lists(st.sampled_from(worker.devices), min_size=1, max_size=3, unique_by=lambda device: device.id)
    parts, ages = st.sampled_from([0.25, 0.5, 1, 1, 1]), st.sampled_from([1.0, 400.0, 5000.0])
    priorities = st.sampled_from(["high", "medium", "low", "low"])
    attained_s = st.sampled_from([0.0, 0.0, 700.0])
    return st.builds(build, chosen, parts, ages, st.booleans(), st.sampled_from(states), priorities, attained_s)


def estimates() -> "SearchStrategy[Estimates]":
    """Estimates for some of the tasks that `snapshots` uses."""
    from hypothesis import strategies as st

    @st.composite
    def build(draw: "DrawFn") -> Estimates:
        measured_tasks = draw(st.lists(st.sampled_from([(dag, task) for dag in "abc" for task in "xy"]), unique=True))
        speeds = {task: {"nvidia/a100-sxm4-40gb": draw(st.sampled_from([0.5, 1.0, 3.0]))} for task in measured_tasks}
        works = {task: Interval(*sorted(draw(st.tuples(*[st.floats(1, 1e5)] * 3)))) for task in measured_tasks}
        return Estimates(speeds, works, tuple(sorted(draw(st.lists(st.floats(1, 1e5), max_size=4)))))

    return build()


def snapshots(max_workers: int = 4, max_pending: int = 8, *, can_preempt: bool = False) -> "SearchStrategy[Snapshot]":
    """A snapshot. Some devices are leased, some are used without a lease, some beyond their capacity.

    Some gangs of two hold leases; no gang waits.

    :param can_preempt: whether its leases can be taken back
    """
    from hypothesis import strategies as st

    plain = st.builds(
        lambda text, priority: DeviceRequest.parse(text, priority=priority),
        st.sampled_from(["gpu", "gpu:2", "gpu:0.5"]),
        st.sampled_from(["urgent", "high", "medium"]),
    )
    drawn_requests = st.one_of(requests(), plain)

    @st.composite
    def build(draw: "DrawFn") -> Snapshot:
        present = tuple(draw(workers(f"worker-{number}")) for number in range(draw(st.integers(0, max_workers))))
        snapshot = Snapshot(7, present, can_preempt=can_preempt, estimates=draw(estimates()))
        held = _draw_leases(draw, snapshot)
        if len(held) > 1 and draw(st.booleans()):
            held[:2] = [(lease, replace(holder, gang="g", gang_size=2)) for lease, holder in held[:2]]
        snapshot = leased(snapshot, *held)
        usage = _draw_usage(draw, snapshot)
        pending = tuple(
            PendingRequest(
                f"r{number}",
                draw(drawn_requests),
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


def _draw_leases(draw: "DrawFn", snapshot: Snapshot) -> list[tuple[Lease, PendingRequest]]:
    """Leases that the devices have room for, and their holders."""
    from hypothesis import strategies as st

    held: list[tuple[Lease, PendingRequest]] = []
    for worker in snapshot.workers:
        for number in range(draw(st.integers(0, 4)) if worker.devices else 0):
            lease, holder = draw(holdings(worker, number))
            after = leased(snapshot, *held, (lease, holder))
            if all(_is_within(after, worker, claim.device_id) for claim in lease.claims):
                token = len(held) + 1
                held.append((lease.model_copy(update={"token": token, "id": f"{holder.id}.{token}"}), holder))
    return held


def _draw_usage(draw: "DrawFn", snapshot: Snapshot) -> dict[tuple[str, str], DeviceUsage]:
    """The usage of the snapshot, and sometimes of a device without a lease."""
    from hypothesis import strategies as st

    usage = dict(snapshot.usage)
    for worker in snapshot.workers:
        for device in worker.devices:
            if (worker.id, device.id) not in usage and draw(st.sampled_from([False, False, False, True])):
                part = draw(st.sampled_from([0.25, 1, 1.5]))
                share_milli, memory = int(device.capacity_milli * part), int((device.memory_bytes or 0) * part)
                usage[worker.id, device.id] = DeviceUsage(share_milli, memory, EPOCH - timedelta(seconds=1))
    return usage


def _is_within(snapshot: Snapshot, worker: Worker, device_id: str) -> bool:
    device = next(device for device in worker.devices if device.id == device_id)
    used = snapshot.used(worker.id, device_id)
    return used.share_milli <= device.capacity_milli and used.memory_bytes <= (device.memory_bytes or 0)
