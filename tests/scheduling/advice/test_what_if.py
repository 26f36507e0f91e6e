from dataclasses import replace

import pytest
from hypothesis import given, settings

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.plan import Place
from hetero_airflow.model.request import DeviceRequest, Priority
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.priority import PriorityPolicy as PriorityPolicy
from hetero_airflow.scheduling.advice import what_if
from hetero_airflow.scheduling.advice.changes import possible_changes
from hetero_airflow.scheduling.advice.what_if import cheapest_change
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_worker, requests, snapshots

GIB = 2**30


def gpus(number, model="a100-sxm4-40gb", memory="40GiB", **fields):
    return tuple(a_device(f"{model}-{n}", model, memory, index=n, **fields) for n in range(number))


def a_snapshot(pending, *workers, busy=(), **fields) -> Snapshot:
    """A snapshot in which these devices, as (worker, device), are leased whole."""
    usage = {key: DeviceUsage(1000, 40 * GIB) for key in busy}
    return Snapshot(1, workers, usage, tuple(pending), **fields)


def answer(snapshot, pending=None, policy=None):
    return cheapest_change(snapshot, pending or snapshot.pending[0], (policy or Fifo()).decide, EPOCH)


def parsed(*args, **kwargs):
    return DeviceRequest.parse(*args, **kwargs)


def test_fewer_devices_help_if_fewer_are_free():
    worker = a_worker("w", gpus(4))
    pending = a_pending("r", "a100:4")
    advice = answer(a_snapshot([pending], worker, busy=[("w", "a100-sxm4-40gb-0")]))
    assert advice.change.request == parsed(["a100:4", "a100:3"])
    assert advice.change.description == "with 3 × nvidia/a100 as one more choice, about 1.3 times as long"
    assert advice.change.cost == pytest.approx(1 / 3)
    assert (advice.place.worker_id, advice.place.alternative, len(advice.place.claims)) == ("w", 1, 3)


def test_a_free_model_costs_its_slowness():
    workers = a_worker("a", gpus(1)), a_worker("t", gpus(1, "t4", "16GiB")), a_worker("v", gpus(1, "v100", "16GiB"))
    pending = a_pending("r", "a100")
    busy = [("a", "a100-sxm4-40gb-0")]
    speeds = {"nvidia/a100-sxm4-40gb": 1.0, "nvidia/v100": 0.5, "nvidia/t4": 0.2}
    known = Estimates({("dag", "r"): speeds})
    advice = answer(a_snapshot([pending], *workers, busy=busy, estimates=known))
    assert advice.change.request == parsed(["a100", "nvidia/v100"])
    assert advice.change.description == "with 1 × nvidia/v100 as one more choice, about 2 times as long"
    busy.append(("v", "v100-0"))
    advice = answer(a_snapshot([pending], *workers, busy=busy, estimates=known))
    assert advice.change.request == parsed(["a100", "nvidia/t4"])


def test_a_device_of_another_vendor_comes_after_a_slower_one():
    amd = gpus(1, "mi300x", "192GiB", vendor="amd")
    workers = a_worker("a", gpus(1)), a_worker("m", amd), a_worker("v", gpus(1, "v100", "16GiB"))
    pending = a_pending("r", "a100", driver=">=500")
    snapshot = a_snapshot([pending], *workers, busy=[("a", "a100-sxm4-40gb-0")])
    assert answer(snapshot).change.request.alternatives[1].model == "v100"
    known = Estimates(default_speeds={"nvidia/a100-sxm4-40gb": 1.0, "nvidia/v100": 0.1, "amd/mi300x": 2.0})
    advice = answer(replace(snapshot, estimates=known))
    assert (advice.change.request.alternatives[1].vendor, advice.change.request.alternatives[1].driver) == ("amd", None)
    assert advice.change.description == "with 1 × amd/mi300x as one more choice"


def test_a_share_helps_if_half_of_a_device_is_free():
    worker = a_worker("w", gpus(1))
    usage = {("w", "a100-sxm4-40gb-0"): DeviceUsage(500, 20 * GIB)}
    snapshot = replace(a_snapshot([a_pending("r", "a100")], worker), usage=usage)
    advice = answer(snapshot)
    assert advice.change.request == parsed(["a100", "a100:0.5"])
    assert advice.change.description == "with 0.5 of a nvidia/a100 as one more choice, about 2 times as long"


@pytest.mark.parametrize(
    ("arguments", "instead", "description"),
    [
        ({"quota": {"cpus": 6}}, {"quota": {"cpus": 3}}, "with 3 cores in place of 6"),
        ({"quota": {"cpus": 16}}, {"quota": {"cpus": 4}}, "with 4 cores in place of 16"),
        (
            {"quota": {"host_memory": "40GiB"}},
            {"quota": {"host_memory": "20GiB"}},
            "with 20GiB of host memory in place of 40GiB",
        ),
        ({"labels": {"zone": "eu"}}, {}, "without the condition zone=eu"),
        (
            {"labels": {"zone": "eu", "rack": "7"}},
            {"labels": {"rack": "7"}},
            "without the condition zone=eu",
        ),
        ({"runtime": {"cuda": ">=99"}}, {}, "without the condition cuda>=99"),
        ({"driver": ">=999"}, {}, "without the condition driver>=999"),
        ({"quota": {"memory": "..20GiB"}}, {}, "without the limit of 20GiB of memory"),
        (
            {"quota": {"memory": "48GiB"}},
            {"quota": {"memory": "40GiB"}},
            "with 40GiB of memory in place of 48GiB",
        ),
    ],
)
def test_fewer_resources_or_conditions_help(arguments, instead, description):
    """4 of 8 cores and 32 of 64 GiB of host memory are free."""
    worker = a_worker("w", (a_cpu(), *gpus(1)), labels={"rack": "7"})
    usage = {("w", "cpu"): DeviceUsage(4000, 32 * GIB)}
    snapshot = replace(a_snapshot([a_pending("r", "a100", **arguments)], worker), usage=usage)
    advice = answer(snapshot)
    assert (advice.change.request, advice.change.description) == (parsed("a100", **instead), description)


def test_a_higher_priority_helps_if_others_are_before_it():
    worker = a_worker("w", gpus(1))
    first, second = a_pending("a", "a100"), a_pending("b", "a100", at_s=1, priority="low")
    snapshot = a_snapshot([first, second], worker)
    advice = answer(snapshot, second, PriorityPolicy())
    assert advice.change.request == parsed("a100", priority="high")
    assert (advice.change.description, advice.change.cost) == ("with the priority high", 0.5)
    assert answer(snapshot, second, Fifo()) is None, "fifo ignores priorities, and no share is free"


def test_the_cheapest_change_is_the_answer():
    worker = a_worker("w", (a_cpu(), *gpus(2)))
    usage = {("w", "cpu"): DeviceUsage(6000, 0)}
    pending = a_pending("r", "a100:2", quota={"cpus": 4})
    advice = answer(replace(a_snapshot([pending], worker), usage=usage))
    assert advice.change.request == parsed("a100:2", quota={"cpus": 2})


def test_without_a_helpful_single_change_there_is_no_answer():
    worker = a_worker("w", gpus(1))
    assert answer(a_snapshot([a_pending("r", "a100")], worker, busy=[("w", "a100-sxm4-40gb-0")])) is None
    assert answer(a_snapshot([a_pending("r", "a100:2")], worker.model_copy(update={"state": WorkerState.LOST}))) is None


def test_a_request_that_was_refused_and_left_the_queue_is_tried_too():
    snapshot = a_snapshot([], a_worker("w", gpus(2)))
    advice = answer(snapshot, a_pending("r", "h100:2"))
    assert advice.change.request == parsed(["h100:2", "nvidia/a100-sxm4-40gb:2"])


def test_members_of_a_gang_are_changed_together():
    workers = [a_worker(name, gpus(2)) for name in "ab"]
    pending = [a_pending(name, "a100:4", gang="g", gang_size=2) for name in ("r0", "r1")]
    seen = []

    def decide(snapshot, now):
        seen.append([request.request for request in snapshot.pending])
        return Fifo().decide(snapshot, now)

    advice = cheapest_change(a_snapshot(pending, *workers), pending[1], decide, EPOCH)
    assert advice.change.request == parsed(["a100:4", "a100:2"])
    assert all(len(set(requests)) == 1 for requests in seen)


def test_only_the_cheapest_of_many_changes_are_tried(monkeypatch):
    workers = [a_worker(f"w{n}", gpus(8, f"x{n}")) for n in range(20)]
    busy = [(f"w{n}", device.id) for n, worker in enumerate(workers) for device in worker.devices]
    tried = []

    def decide(snapshot, now):
        tried.append(snapshot)
        return Fifo().decide(snapshot, now)

    snapshot = a_snapshot([a_pending("r", "acme/x0:8")], *workers, busy=busy)
    assert cheapest_change(snapshot, snapshot.pending[0], decide, EPOCH) is None
    assert len(tried) == what_if.MAX_TRIED < len(possible_changes(snapshot, snapshot.pending[0]))


@settings(max_examples=60, deadline=None)
@given(snapshots(), requests())
def test_each_change_is_another_request_with_a_cost_and_the_answer_is_placed_by_the_policy(snapshot, request):
    pending = replace(a_pending("new", at_s=9), request=request)
    snapshot = replace(snapshot, pending=(*snapshot.pending, pending))
    changes = possible_changes(snapshot, pending)
    assert [change.cost for change in changes] == sorted(change.cost for change in changes)
    assert all(change.cost > 0 and change.description and change.request != request for change in changes)
    assert len({change.request for change in changes}) == len(changes)
    assert all(change.request.priority.rank <= request.priority.rank for change in changes)
    advice = cheapest_change(snapshot, pending, PriorityPolicy().decide, EPOCH)
    if advice is None:
        return
    changed = replace(snapshot, pending=(*snapshot.pending[:-1], replace(pending, request=advice.change.request)))
    plan = PriorityPolicy().decide(changed, EPOCH)
    placed = [decision for decision in plan.decisions if isinstance(decision, Place) and decision.request_id == "new"]
    assert placed == [advice.place]
    assert advice == cheapest_change(snapshot, pending, PriorityPolicy().decide, EPOCH)


def test_the_highest_priority_cannot_be_raised():
    snapshot = a_snapshot([a_pending("r", "a100", priority="urgent")], a_worker("w", gpus(1)))
    assert all(c.request.priority is Priority.URGENT for c in possible_changes(snapshot, snapshot.pending[0]))


def test_a_topology_can_be_given_up():
    snapshot = a_snapshot([a_pending("r", "a100:2", topology="nvlink")], a_worker("w", gpus(2)))
    without = [c for c in possible_changes(snapshot, snapshot.pending[0]) if c.request == parsed("a100:2")]
    assert [(change.cost, change.description) for change in without] == [(0.1, "without the topology nvlink")]
