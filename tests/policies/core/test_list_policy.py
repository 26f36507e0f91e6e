from hypothesis import given, settings

from hetero_airflow.matching.matcher import Matcher
from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.plan import (
    Account,
    AlternativeAccount,
    CandidateAccount,
    Place,
    Plan,
    Reason,
    ReasonCode,
    Refuse,
    Wait,
)
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.policies.core.list_scheduler import best_placement
from hetero_airflow.policies.core.migration import fit_check
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.priority import PriorityPolicy
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_lease, a_pending, a_worker, leased, snapshots
from tests.policies.plans import order

GIB = 2**30


def test_priority_serves_class_then_weight_then_age_then_id() -> None:
    pending = (
        a_pending("old", "gpu", at_s=0),
        a_pending("b-heavy", "gpu", at_s=9, weight=5),
        a_pending("a-heavy", "gpu", at_s=9, weight=5),
        a_pending("low", "gpu", at_s=0, weight=99, priority="low"),
        a_pending("urgent", "gpu", at_s=8, priority="urgent"),
        a_pending("young", "gpu", at_s=7),
    )
    plan = PriorityPolicy().decide(Snapshot(1, (a_worker(),), {}, pending), EPOCH)
    assert order(plan) == ["urgent", "a-heavy", "b-heavy", "old", "young", "low"]


def test_fifo_serves_by_age_alone() -> None:
    pending = (
        a_pending("b", "gpu", at_s=1, priority="urgent", weight=9),
        a_pending("a", "gpu", at_s=1),
        a_pending("c", "gpu"),
    )
    assert order(Fifo().decide(Snapshot(1, (a_worker(),), {}, pending), EPOCH)) == ["c", "a", "b"]


def test_each_decision_carries_its_account() -> None:
    worker = a_worker("a", (a_cpu(4), a_device("GPU-0")))
    pending = (
        a_pending("placed", "gpu", quota={"cpus": 2}),
        a_pending("waits", "gpu", at_s=1),
        a_pending("refused", "h100:2", at_s=2),
    )
    alternative = "1 × gpu (cpus=2)"
    terms = {"real": 20.0, "memory": 7.321224, "packed": 0.4}
    candidate = CandidateAccount("a", ("GPU-0",), 27.721224, terms)
    busy = Reason(ReasonCode.BUSY, "1 × gpu", "0 of 1 free")
    model = Reason(ReasonCode.MODEL, "nvidia/h100", "nvidia/a100-sxm4-40gb")
    assert Fifo().decide(Snapshot(1, (worker,), {}, pending), EPOCH) == Plan(
        (
            Place(
                "placed",
                "a",
                0,
                (
                    Claim(device_id="GPU-0", share_milli=1000, memory_bytes=40 * GIB),
                    Claim(device_id="cpu", share_milli=2000),
                ),
                Account(
                    "fifo",
                    "placed on a with score 27.72",
                    (AlternativeAccount(alternative, 1, (), (candidate,)),),
                    candidate,
                ),
            ),
            Wait(
                "waits",
                1,
                Reason(ReasonCode.BUSY, "1 × gpu", "0 of 1 free (worker a)"),
                Account("fifo", "waits, first in the queue", (AlternativeAccount("1 × gpu", 1, ((1, busy),)),)),
            ),
            Refuse(
                "refused",
                Reason(ReasonCode.MODEL, "nvidia/h100", "nvidia/a100-sxm4-40gb (worker a)"),
                "worker a has 1 × nvidia/a100-sxm4-40gb (model: asked nvidia/h100, found nvidia/a100-sxm4-40gb)",
                Account(
                    "fifo",
                    "no known worker could ever run it",
                    (AlternativeAccount("2 × nvidia/h100", 1, ((1, model),)),),
                ),
            ),
        )
    )


def test_unordered_alternatives_take_the_best_ordered_ones_the_first() -> None:
    big = a_worker("big", (a_device("GPU-0", "a100-sxm4-80gb", "80GiB"),))
    small = a_worker("small", (a_device("GPU-0", "t4", "16GiB"),))
    for device, expected in ((["a100", "t4"], ("big", 0)), ({"a100", "t4"}, ("small", 1))):
        [place] = Fifo().decide(Snapshot(1, (big, small), {}, (a_pending(device=device),)), EPOCH).places
        assert (place.worker_id, place.alternative) == expected


def test_the_second_alternative_is_taken_while_the_first_is_busy() -> None:
    worker = a_worker("a", (a_device("GPU-0"), a_device("GPU-1", "h100-80gb", "80GiB", index=1)))
    snapshot = Snapshot(
        1, (worker,), {("a", "GPU-1"): DeviceUsage(1000, 80 * GIB)}, (a_pending(device=["h100", "a100"]),)
    )
    [place] = Fifo().decide(snapshot, EPOCH).places
    assert (place.alternative, place.claims) == (
        1,
        (Claim(device_id="GPU-0", share_milli=1000, memory_bytes=40 * GIB),),
    )


def test_a_request_for_lost_or_unhealthy_workers_waits_last_and_reserves_nothing() -> None:
    lost = a_worker("lost", (a_device("GPU-0", "h100", "80GiB"),), state=WorkerState.LOST)
    ill = a_worker("ill", (a_device("GPU-0", leasable=False, problem="too hot"), a_device("GPU-1", index=1)))
    pending = (
        a_pending("needs-lost", "h100"),
        a_pending("needs-ill", "gpu:2", at_s=1),
        a_pending("small", "gpu", at_s=2),
    )
    plan = Fifo().decide(Snapshot(1, (lost, ill), {}, pending), EPOCH)
    assert [place.request_id for place in plan.places] == ["small"]
    assert [(d.request_id, d.position, str(d.reason)) for d in plan.decisions if isinstance(d, Wait)] == [
        (
            "needs-lost",
            1,
            "lost: asked 1 × nvidia/h100, found a worker whose heartbeat stopped (worker lost)",
        ),
        ("needs-ill", 2, "health: asked 2 × gpu, found 1 of 2 healthy: too hot (worker ill)"),
    ]


def test_cores_and_host_memory_are_reserved_for_a_head_that_asks_for_them() -> None:
    usage = {("worker-a", "GPU-0"): DeviceUsage(1000, 40 * GIB), ("worker-a", "GPU-1"): DeviceUsage(1000, 40 * GIB)}
    pending = (
        a_pending("head", "gpu", quota={"cpus": 5, "host_memory": "50GiB"}),
        a_pending("too-many-cores", "cpu:4", at_s=1),
        a_pending("too-much-memory", "cpu:1", at_s=2, quota={"host_memory": "15GiB"}),
        a_pending("small", "cpu:3", at_s=3, quota={"host_memory": "14GiB"}),
    )
    plan = Fifo().decide(Snapshot(1, (a_worker(),), usage, pending), EPOCH)
    assert [(type(d).__name__, d.request_id) for d in plan.decisions] == [
        ("Wait", "head"),
        ("Wait", "too-many-cores"),
        ("Wait", "too-much-memory"),
        ("Place", "small"),
    ]


def test_a_thousand_equal_requests_share_one_account() -> None:
    pending = tuple(a_pending(f"r{number:04}", "gpu", at_s=number) for number in range(1000))
    waits = [d for d in Fifo().decide(Snapshot(1, (a_worker(),), {}, pending), EPOCH).decisions if isinstance(d, Wait)]
    assert len({id(wait.account.alternatives) for wait in waits[1:]}) == 1


def test_a_decision_does_not_change_the_snapshot() -> None:
    usage = {("worker-a", "GPU-0"): DeviceUsage(500, 20 * GIB)}
    snapshot = Snapshot(1, (a_worker(),), usage, (a_pending(device="gpu:0.5"),))
    before: tuple[PendingRequest, ...] = snapshot.pending
    [place] = Fifo().decide(snapshot, EPOCH).places
    assert place.claims == (Claim(device_id="GPU-0", share_milli=500, memory_bytes=20 * GIB),)
    assert (snapshot.usage, snapshot.pending) == ({("worker-a", "GPU-0"): DeviceUsage(500, 20 * GIB)}, before)


@settings(max_examples=60, deadline=None)
@given(snapshots())
def test_whether_a_request_fits_anywhere_agrees_with_the_ranking_of_all_placements(snapshot: Snapshot) -> None:
    index = WorkerIndex(Matcher(TightFitScorer()), snapshot)
    requests = [pending.request for pending in (*snapshot.pending, *snapshot.holders.values())]
    fits_anywhere = fit_check(index)
    assert [fits_anywhere(request) for request in requests] == [
        best_placement(index, request, None) is not None for request in requests
    ]


def test_a_share_finds_a_place_beside_another_and_a_core_beside_full_accelerators() -> None:
    worker = a_worker("a", (a_cpu(8), a_device("gpu-0"), a_device("gpu-1", index=1)))
    running = (
        (a_lease("whole", "a", **{"gpu-0": 1000}), a_pending("whole")),
        (a_lease("share", "a", **{"gpu-1": 700}), a_pending("share", "gpu:0.7")),
    )
    fits_anywhere = fit_check(WorkerIndex(Matcher(TightFitScorer()), leased(Snapshot(1, (worker,)), *running)))
    texts = ("gpu:0.3", "gpu:0.4", "gpu", "cpu:8", "cpu:9")
    assert [fits_anywhere(DeviceRequest.parse(text)) for text in texts] == [True, False, False, True, False]
