from __future__ import annotations

from hetero_airflow.matching.accounts import NearestWorker, account_text, alternative_account, nearest_worker
from hetero_airflow.matching.matcher import Matcher
from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.plan import Account, AlternativeAccount, Reason, ReasonCode
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot
from hetero_airflow.testing import a_cpu, a_device, a_worker

GIB = 2**30
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
