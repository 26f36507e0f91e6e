"""One physical device has one holder, whichever workers report it."""

from datetime import timedelta

import pytest

from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.lease import LeaseState
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store.store import HoldLifted, HoldPlaced, RequestSubmitted, WorkerForgotten, WorkerLost, WorkerSeen
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_place, a_worker, move_lease
from tests.store.contract import IN_MEMORY_TOO, LATER, grant, release

UUID = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"
PCI = "0000:07:00.0"
GPU = a_device(UUID, pci=PCI)
NPU = a_device(PCI, vendor="ascend", kind="npu", model="910b4", pci=PCI)
HELD = "worker worker-a holds it; it is free here when its task there has ended"


def in_containers(*devices, ids=("worker-a", "worker-b"), engine="local", **fields):
    """Workers in containers of one machine, which all see these devices."""
    fields = {"boot_id": "boot-1"} | fields
    return [a_worker(id_, (a_cpu(), *devices), engine=engine, **fields) for id_ in ids]


def prepare(store, workers, requests=("r1", "r2")):
    store.record([*map(WorkerSeen, workers), *(RequestSubmitted(a_pending(id_)) for id_ in requests)], EPOCH)
    return store


def offered(store, worker_id):
    worker = next(worker for worker in store.snapshot().workers if worker.id == worker_id)
    return [device.id for device in worker.devices if device.leasable]


def problems(store, worker_id):
    worker = next(worker for worker in store.snapshot().workers if worker.id == worker_id)
    return {device.id: device.problem for device in worker.devices if device.problem}


def taken(store, place):
    """Whether the store grants a placement."""
    return not store.commit(Plan((place,)), EPOCH, LATER).raced


@pytest.mark.parametrize("device", [GPU, NPU])
@IN_MEMORY_TOO
def test_a_device_that_a_worker_holds_is_leased_to_no_other_worker(store, device):
    prepare(store, in_containers(device))
    assert (offered(store, "worker-a"), offered(store, "worker-b")) == (["cpu", device.id], ["cpu", device.id])
    (lease,) = grant(store, a_place("r1", "worker-a", **{device.id: 1000}))
    assert (offered(store, "worker-a"), offered(store, "worker-b")) == (["cpu", device.id], ["cpu"])
    assert problems(store, "worker-b") == {device.id: HELD}
    assert not taken(store, a_place("r2", "worker-b", **{device.id: 1000}))
    release(store, lease)
    assert (offered(store, "worker-b"), problems(store, "worker-b")) == (["cpu", device.id], {})
    assert taken(store, a_place("r2", "worker-b", **{device.id: 1000}))
    assert (offered(store, "worker-a"), offered(store, "worker-b")) == (["cpu"], ["cpu", device.id])


@IN_MEMORY_TOO
def test_of_a_plan_that_places_one_device_twice_the_first_placement_counts(store):
    prepare(store, in_containers(GPU))
    places = a_place("r1", "worker-b", **{UUID: 1000}), a_place("r2", "worker-a", **{UUID: 1000})
    commit = store.commit(Plan(places), EPOCH, LATER)
    assert ([lease.worker_id for lease in commit.leases], commit.raced) == (["worker-b"], ("r2",))


@IN_MEMORY_TOO
def test_shares_of_a_device_go_to_one_worker(store):
    prepare(store, in_containers(GPU), ("r1", "r2", "r3"))
    first, second = grant(store, *(a_place(id_, "worker-a", **{UUID: 500}) for id_ in ("r1", "r2")))
    release(store, first)
    assert not taken(store, a_place("r3", "worker-b", **{UUID: 500}))
    release(store, second)
    assert taken(store, a_place("r3", "worker-b", **{UUID: 500}))


def test_a_hold_on_a_device_counts_under_each_name_that_reports_it(store):
    """A container that restarts under another name gives a faulty or drained device no new task."""
    first, second = in_containers(GPU)
    prepare(store, [first])
    hold = Hold("worker-a", UUID, HoldKind.DRAINED, "new fan", EPOCH, "a person undrains it")
    whole = Hold("worker-a", "", HoldKind.DRAINED, "new room", EPOCH, "a person undrains it")
    store.record([HoldPlaced(hold), HoldPlaced(whole), WorkerLost("worker-a"), WorkerSeen(second)], EPOCH)
    assert (offered(store, "worker-b"), problems(store, "worker-b")) == (["cpu"], {UUID: f"on worker worker-a, {hold}"})
    store.record([HoldLifted("worker-a", UUID, HoldKind.DRAINED)], EPOCH)
    assert (offered(store, "worker-b"), problems(store, "worker-b")) == (["cpu", UUID], {})


MIG = a_device("MIG-8c3b9a5e-7e0c-5a4e-9b57-2f1f3c2b1a01", parent=UUID, partition="1g.10gb", pci=PCI)
OTHER_MIG = a_device("MIG-1d2e3f40-5162-5374-8596-a7b8c9d0e1f2", parent=UUID, partition="3g.40gb", pci=PCI)
UNNAMED_MIG = a_device(f"{PCI}/0", parent=PCI, partition="1g.10gb", pci=PCI)
CHIP = a_device("npu-0-0", vendor="ascend", kind="npu", pci=PCI, details={"npu": 0, "chip": 0})


@pytest.mark.parametrize(
    ("device", "other", "fields", "is_one"),
    [
        (GPU, GPU, {"boot_id": "boot-2"}, True),
        (NPU, NPU, {"boot_id": "boot-2"}, False),
        (NPU, NPU, {"boot_id": "", "host": "machine"}, False),
        (NPU, NPU.model_copy(update={"id": "npu-7"}), {}, True),
        (NPU, a_device("0000:08:00.0", pci="0000:08:00.0"), {}, False),
        (GPU.model_copy(update={"simulated": True}),) * 2 + ({}, False),
        (a_device("npu-7"),) * 2 + ({}, True),
        (MIG, MIG, {}, True),
        (MIG, OTHER_MIG, {}, False),
        (UNNAMED_MIG, UNNAMED_MIG, {}, True),
        (UNNAMED_MIG, UNNAMED_MIG.model_copy(update={"id": f"{PCI}/1"}), {}, False),
        (CHIP, CHIP.model_copy(update={"id": "npu-0-1", "details": {"npu": 0, "chip": 1}}), {}, False),
        (CHIP, CHIP.model_copy(update={"id": PCI}), {}, True),
    ],
)  # fmt: skip
@IN_MEMORY_TOO
def test_devices_are_one_by_their_uuid_or_by_their_address_on_one_running_machine(store, device, other, fields, is_one):
    (worker,), (other_worker,) = in_containers(device, ids=("worker-a",)), in_containers(other, ids=("worker-b",))
    prepare(store, [worker, other_worker.model_copy(update=fields)])
    grant(store, a_place("r1", "worker-a", **{device.id: 1000, "cpu": 8000}))
    assert taken(store, a_place("r2", "worker-b", **{other.id: 1000, "cpu": 8000})) is not is_one


@IN_MEMORY_TOO
def test_without_a_boot_id_the_host_name_tells_machines_apart(store):
    prepare(store, in_containers(NPU, boot_id="", host="machine"))
    grant(store, a_place("r1", "worker-a", **{PCI: 1000}))
    assert not taken(store, a_place("r2", "worker-b", **{PCI: 1000}))


@IN_MEMORY_TOO
def test_two_devices_of_one_worker_are_never_taken_for_one(store):
    devices = a_device("card-0", pci=PCI), a_device("card-1", pci=PCI)
    prepare(store, in_containers(*devices, ids=("worker-a",)))
    assert taken(store, a_place("r1", "worker-a", **{"card-0": 1000}))
    assert taken(store, a_place("r2", "worker-a", **{"card-1": 1000}))


@IN_MEMORY_TOO
def test_the_slots_of_a_clusters_node_name_no_physical_device(store):
    prepare(store, in_containers(GPU, engine="kubernetes"))
    grant(store, a_place("r1", "worker-a", **{UUID: 1000}))
    assert taken(store, a_place("r2", "worker-b", **{UUID: 1000}))


@IN_MEMORY_TOO
def test_a_lost_worker_holds_its_devices_until_its_leases_have_ended(store):
    prepare(store, in_containers(GPU))
    (lease,) = grant(store, a_place("r1", "worker-a", **{UUID: 1000}))
    store.record([WorkerLost("worker-a")], LATER)
    assert problems(store, "worker-b") == {UUID: HELD}
    assert not taken(store, a_place("r2", "worker-b", **{UUID: 1000}))
    move_lease(store, lease.id, lease.token, LeaseState.EVICTED, LATER)
    assert taken(store, a_place("r2", "worker-b", **{UUID: 1000}))


def test_a_forgotten_worker_holds_nothing(store):
    prepare(store, in_containers(GPU, engine="celery"))
    assert offered(store, "worker-b") == ["cpu"]
    store.record([WorkerLost("worker-a"), WorkerForgotten("worker-a", LATER)], LATER)
    assert [worker.id for worker in store.snapshot().workers] == ["worker-b"]
    assert offered(store, "worker-b") == ["cpu", UUID]
    assert taken(store, a_place("r1", "worker-b", **{UUID: 1000}))


@IN_MEMORY_TOO
def test_a_device_that_vanished_while_it_was_leased_is_held_until_its_lease_has_ended(store):
    prepare(store, in_containers(GPU))
    (lease,) = grant(store, a_place("r1", "worker-a", **{UUID: 1000}))
    store.record([WorkerSeen(*in_containers(ids=("worker-a",)))], LATER)
    assert not taken(store, a_place("r2", "worker-b", **{UUID: 1000}))
    release(store, lease)
    assert taken(store, a_place("r2", "worker-b", **{UUID: 1000}))


def test_leases_and_holds_survive_a_reboot(store):
    prepare(store, in_containers(NPU), ("r1", "r2", "r3"))
    (lease,) = grant(store, a_place("r1", "worker-a", **{PCI: 500}))
    drain = Hold("worker-a", "", HoldKind.DRAINED, "new fan", EPOCH, "a person undrains it")
    store.record([HoldPlaced(drain), *map(WorkerSeen, in_containers(NPU, boot_id="boot-2"))], LATER)
    assert problems(store, "worker-b") == {PCI: HELD}
    assert not taken(store, a_place("r2", "worker-b", **{PCI: 1000}))
    release(store, lease)
    assert taken(store, a_place("r2", "worker-b", **{PCI: 1000}))
    assert store.snapshot().holds == (drain,)
    assert not taken(store, a_place("r3", "worker-a", cpu=1000))


@IN_MEMORY_TOO
def test_a_machine_that_boots_again_is_no_conflict_with_what_was_leased_there_meanwhile(store):
    prepare(store, in_containers(NPU), ("r1", "r2", "r3"))
    (before,) = grant(store, a_place("r1", "worker-a", **{PCI: 500}))
    after_boot = in_containers(NPU, boot_id="boot-2")
    store.record([WorkerSeen(after_boot[1])], LATER)
    (meanwhile,) = grant(store, a_place("r2", "worker-b", **{PCI: 500}))
    store.record([WorkerSeen(after_boot[0])], LATER)
    assert problems(store, "worker-b").keys() == problems(store, "worker-a").keys() == {PCI}
    assert not taken(store, a_place("r3", "worker-a", **{PCI: 500}))
    for lease in (before, meanwhile):
        release(store, lease)
    assert taken(store, a_place("r3", "worker-a", **{PCI: 500}))


@IN_MEMORY_TOO
def test_of_several_agents_that_offer_a_device_one_gets_its_tasks(store):
    """A gang on both would wait for ever: it can never have the device twice."""
    prepare(store, in_containers(GPU, ids=("worker-b",), engine="celery"))
    store.record(list(map(WorkerSeen, in_containers(GPU, ids=("worker-c", "worker-a"), engine="celery"))), LATER)
    assert [offered(store, f"worker-{name}") for name in "abc"] == [["cpu"], ["cpu", UUID], ["cpu"]]
    text = "worker worker-b offers it too and gets its tasks: run one worker for each device"
    assert problems(store, "worker-a") == problems(store, "worker-c") == {UUID: text}
    (again,) = in_containers(GPU, ids=("worker-b",), engine="celery", labels={"zone": "a"})
    store.record([WorkerSeen(again)], LATER + timedelta(seconds=1))
    assert offered(store, "worker-b") == ["cpu", UUID]
    store.record([WorkerLost("worker-b")], LATER)
    assert (offered(store, "worker-a"), offered(store, "worker-c")) == (["cpu", UUID], ["cpu"])


@IN_MEMORY_TOO
def test_workers_of_different_engines_take_turns(store):
    (local,), (remote,) = in_containers(GPU, ids=("a",)), in_containers(GPU, ids=("b",), engine="celery")
    prepare(store, [local, remote])
    assert (offered(store, "a"), offered(store, "b")) == (["cpu", UUID], ["cpu", UUID])
    grant(store, a_place("r1", "b", **{UUID: 1000}))
    assert (offered(store, "a"), offered(store, "b")) == (["cpu"], ["cpu", UUID])


@IN_MEMORY_TOO
def test_a_snapshot_without_a_change_keeps_its_workers(store):
    prepare(store, in_containers(GPU))
    (lease,) = grant(store, a_place("r1", "worker-a", **{UUID: 1000}))
    workers = store.snapshot().workers
    store.record([RequestSubmitted(a_pending("r3"))], LATER)
    assert store.snapshot().workers is workers
    release(store, lease)
    changed = store.snapshot().workers
    assert (changed[0] is workers[0], changed[1].devices[1].leasable) == (True, True)
    assert all(worker.state is WorkerState.ONLINE for worker in changed)


@IN_MEMORY_TOO
def test_the_cores_of_a_machine_are_no_physical_device(store):
    prepare(store, in_containers())
    for request_id, worker_id in (("r1", "worker-a"), ("r2", "worker-b")):
        assert taken(store, a_place(request_id, worker_id, cpu=8000))


@IN_MEMORY_TOO
def test_a_later_inventory_shows_nothing_else(store):
    """A worker that reports again while another one holds its device still can't lease it."""
    prepare(store, in_containers(GPU))
    grant(store, a_place("r1", "worker-a", **{UUID: 1000}))
    again = in_containers(GPU, ids=("worker-b",), labels={"zone": "a"})
    store.record([WorkerSeen(*again)], LATER + timedelta(seconds=1))
    assert problems(store, "worker-b") == {UUID: HELD}
