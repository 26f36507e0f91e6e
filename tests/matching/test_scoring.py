"""How placements are scored, and what an account says of the candidates and the reasons."""

import pytest

from hetero_airflow.matching.accounts import NearestWorker, account_text, alternative_account, nearest_worker
from hetero_airflow.matching.matcher import Matcher
from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Account, AlternativeAccount, Reason, ReasonCode
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot
from hetero_airflow.model.worker import Worker
from hetero_airflow.testing import a_cpu, a_device, a_worker

GIB = 2**30
SMALL = a_device("GPU-0", "t4", "16GiB")
BIG = a_device("GPU-1", "a100", "80GiB", index=1)


def best(
    device: object, workers: tuple[Worker, ...], usage: dict[tuple[str, str], int] | None = None
) -> tuple[str, ...]:
    """The worker, then the devices, that the tightest fit is on."""
    held = {key: DeviceUsage(share_milli, share_milli * GIB // 1000) for key, share_milli in (usage or {}).items()}
    index = WorkerIndex(Matcher(TightFitScorer()), Snapshot(1, workers, held))
    [(worker, fit)] = index.ranking(DeviceRequest.parse(device).alternatives[0]).best()
    entry = index.entries[worker]
    return (entry.worker.id, *(entry.device_ids[position] for position in fit.chosen))


def test_the_smallest_sufficient_memory_is_taken_first() -> None:
    assert best("gpu", (a_worker("a", (BIG,)), a_worker("b", (SMALL,)))) == ("b", "GPU-0")
    assert best("gpu", (a_worker("a", (BIG, SMALL)),)) == ("a", "GPU-0")
    request = {"device": "gpu", "memory": "17GiB.."}
    assert best(request, (a_worker("a", (BIG,)), a_worker("b", (SMALL,)))) == ("a", "GPU-1")


def test_shares_are_packed_onto_shared_devices() -> None:
    workers = (a_worker("a"), a_worker("b"))
    assert best("gpu:0.25", workers, {("b", "GPU-1"): 500}) == ("b", "GPU-1")
    assert best("gpu:0.25", workers, {("b", "GPU-1"): 500, ("a", "GPU-0"): 750}) == ("a", "GPU-0")
    assert best("gpu:0.5", workers, {("b", "GPU-1"): 500, ("a", "GPU-0"): 750}) == ("b", "GPU-1")


def test_the_fuller_worker_is_filled_first() -> None:
    assert best("gpu", (a_worker("a"), a_worker("b")), {("b", "GPU-0"): 1000}) == ("b", "GPU-1")


def test_a_worker_with_linked_devices_comes_before_a_fuller_worker() -> None:
    linked = a_worker("z", (a_device("GPU-0", peers=("GPU-1",)), a_device("GPU-1", index=1, peers=("GPU-0",))))
    loose = a_worker("a", tuple(a_device(f"GPU-{i}", index=i) for i in range(3)))
    assert best("gpu:2", (loose, linked), {("a", "GPU-0"): 1000}) == ("z", "GPU-0", "GPU-1")


def test_one_numa_node_comes_before_two() -> None:
    apart = a_worker("a", (a_device("GPU-0", numa_node=0), a_device("GPU-1", index=1, numa_node=1)))
    near = a_worker("b", (a_device("GPU-0", numa_node=1), a_device("GPU-1", index=1, numa_node=1)))
    assert best("gpu:2", (apart, near)) == ("b", "GPU-0", "GPU-1")


def test_real_devices_always_come_before_simulated_ones() -> None:
    pretend = a_worker("a", (a_device("GPU-0", "t4", "16GiB", simulated=True),))
    assert best("gpu", (pretend, a_worker("b", (BIG,)))) == ("b", "GPU-1")
    mixed = a_worker("a", tuple(a_device(f"GPU-{i}", index=i, simulated=i < 2) for i in range(4)))
    assert best("gpu:2", (mixed,)) == ("a", "GPU-2", "GPU-3")
    assert best("gpu:3", (mixed,)) == ("a", "GPU-0", "GPU-2", "GPU-3")


def test_cores_come_from_a_host_without_accelerators_then_from_the_fuller_host() -> None:
    plain = (a_worker("y", (a_cpu(),)), a_worker("z", (a_cpu(),)))
    assert best("cpu:2", (a_worker("a"), *plain)) == ("y", "cpu")
    assert best("cpu:2", (a_worker("a"), *plain), {("z", "cpu"): 2000}) == ("z", "cpu")


def test_ties_go_to_the_lower_worker_id_and_device_index() -> None:
    devices = (a_device("GPU-b", index=0), a_device("GPU-a", index=1))
    assert best("gpu", (a_worker("b", devices), a_worker("a", devices))) == ("a", "GPU-b")


def test_the_terms_are_named_and_sum_to_the_score() -> None:
    index = WorkerIndex(
        Matcher(TightFitScorer()), Snapshot(1, (a_worker(),), {("worker-a", "GPU-0"): DeviceUsage(500, 20 * GIB)})
    )
    [(_, fit)] = index.ranking(DeviceRequest.parse("gpu:0.25").alternatives[0]).best()
    assert dict(fit.terms) == pytest.approx({"real": 20, "memory": 7.321224, "shared": 3.0, "packed": 0.2})
    assert fit.score == pytest.approx(30.521224)


WORKERS = (
    a_worker("a", (a_cpu(),)),
    a_worker("b", (a_device(), a_device("GPU-1", index=1))),
    a_worker("c", (a_device(),)),
    a_worker("d", (a_device("GPU-0", "h100", "80GiB"),)),
)


def an_index() -> WorkerIndex:
    return WorkerIndex(Matcher(TightFitScorer()), Snapshot(1, WORKERS, {("c", "GPU-0"): DeviceUsage(1000, 40 * GIB)}))


def test_an_account_counts_reasons_and_lists_the_best_candidates() -> None:
    account = alternative_account(an_index(), DeviceRequest.parse("a100").alternatives[0])
    assert (account.asked, account.evaluated) == ("1 × nvidia/a100", 4)
    assert account.filtered == (
        (1, Reason(ReasonCode.BUSY, "1 × nvidia/a100", "0 of 1 free")),
        (1, Reason(ReasonCode.KIND, "nvidia/a100", "generic/x86-64")),
        (1, Reason(ReasonCode.MODEL, "nvidia/a100", "nvidia/h100")),
    )
    assert [(c.worker_id, c.device_ids, sorted(c.terms)) for c in account.candidates] == [
        ("b", ("GPU-0",), ["memory", "packed", "real"])
    ]


def test_equal_reasons_are_counted_together_the_most_frequent_first() -> None:
    account = alternative_account(an_index(), DeviceRequest.parse("gpu:8").alternatives[0])
    assert account == AlternativeAccount(
        "8 × gpu",
        4,
        (
            (3, Reason(ReasonCode.COUNT, "8 × gpu", "1")),
            (1, Reason(ReasonCode.KIND, "gpu", "generic/x86-64")),
        ),
    )


def test_the_nearest_worker_shows_its_offers_and_the_reason() -> None:
    nearest = nearest_worker(an_index(), DeviceRequest.parse(["mi300x", "a100-80gb:2"]).alternatives)
    reason = Reason(ReasonCode.MODEL, "nvidia/a100-80gb", "nvidia/a100-sxm4-40gb")
    assert nearest == NearestWorker(1, "b", reason, ((2, "nvidia/a100-sxm4-40gb"),))
    assert str(nearest) == (
        "worker b has 2 × nvidia/a100-sxm4-40gb (model: asked nvidia/a100-80gb, found nvidia/a100-sxm4-40gb)"
    )


def test_the_nearest_worker_for_too_many_cores_has_cores() -> None:
    index = WorkerIndex(Matcher(TightFitScorer()), Snapshot(1, WORKERS[:1]))
    nearest = nearest_worker(index, DeviceRequest.parse("cpu:64").alternatives)
    assert str(nearest) == "worker a has 8 × cpu core (count: asked 64 cores, found 8)"


def test_an_account_has_a_text() -> None:
    alternative = alternative_account(an_index(), DeviceRequest.parse("a100").alternatives[0])
    assert account_text(Account("fifo", "placed on b", (alternative,))) == "\n".join(
        [
            "fifo: placed on b",
            "  1 × nvidia/a100: 4 workers evaluated",
            "    1 ruled out by busy: asked 1 × nvidia/a100, found 0 of 1 free",
            "    1 ruled out by kind: asked nvidia/a100, found generic/x86-64",
            "    1 ruled out by model: asked nvidia/a100, found nvidia/h100",
            "    possible: b (GPU-0), score 27.52 = real 20 + memory 7.321 + packed 0.2",
        ]
    )
