"""Policies that place by the mix of requests, and what parts of an accelerator are worth."""

from dataclasses import replace

import pytest

from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.assignment import Assignment
from hetero_airflow.policies.consolidation import Consolidation
from hetero_airflow.policies.core.list_policy import ListPolicy
from hetero_airflow.policies.core.mix_scorer import request_mix, rounded_request_mix
from hetero_airflow.policies.core.share_prices import share_prices
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_pending, a_worker
from tests.matching.packing.test_fragmentation import a_mix


def gpus(count: int) -> tuple[object, ...]:
    return tuple(a_device(f"GPU-{n}", index=n) for n in range(count))


def workers(*counts: tuple[int, int]) -> Snapshot:
    """A worker for each (cores, GPUs)."""
    made = [a_worker(f"w{n}", (a_cpu(cores), *gpus(count))) for n, (cores, count) in enumerate(counts)]  # type: ignore[arg-type]
    return Snapshot(1, workers=tuple(made))


def an_alternative(word: str, cpus: int | None = None) -> object:
    return DeviceRequest.parse(word, quota={"cpus": cpus} if cpus else None).alternatives[0]


def test_a_single_device_is_taken_where_no_pair_is_broken() -> None:
    mix = ((an_alternative("gpu:2"), 0.5), (an_alternative("gpu"), 0.5))
    snapshot = workers((8, 2), (8, 1))
    snapshot = replace(snapshot, pending=(a_pending(),), estimates=Estimates(mix=mix))  # type: ignore[arg-type]
    assert [place.worker_id for place in Consolidation().decide(snapshot, EPOCH).places] == ["w1"]


def test_cores_that_accelerators_need_are_left_to_them() -> None:
    mix = ((an_alternative("gpu", 4), 0.9), (an_alternative("cpu:4"), 0.1))
    snapshot = workers((8, 2), (24, 2))
    snapshot = replace(snapshot, pending=(a_pending(device="cpu:4"),), estimates=Estimates(mix=mix))  # type: ignore[arg-type]
    assert [place.worker_id for place in Consolidation().decide(snapshot, EPOCH).places] == ["w1"]


@pytest.mark.parametrize(("others", "worker"), [("gpu:0.5", "w1"), ("gpu:2", "w0"), ("cpu:2", "w0")])
def test_the_default_looks_ahead_where_shares_and_whole_devices_mix(others: str, worker: str) -> None:
    """Elsewhere it fills the fullest worker first. The next mix counts at once."""
    default = Assignment()
    for word, place in (("gpu:0.5", "w1"), (others, worker)):
        mix = ((an_alternative("gpu", 4), 0.8), (an_alternative("cpu:4"), 0.1), (an_alternative(word), 0.1))
        snapshot = replace(workers((8, 2), (24, 2)), pending=(a_pending(device="cpu:4"),), estimates=Estimates(mix=mix))  # type: ignore[arg-type]
        assert [place.worker_id for place in default.decide(snapshot, EPOCH).places] == [place]


def test_the_default_takes_the_smaller_device_where_both_leave_as_much() -> None:
    mix = ((an_alternative("gpu"), 0.5), (an_alternative("gpu:0.5"), 0.5))
    sizes = ("80GiB", "16GiB")
    made = (a_worker(f"w{n}", (a_cpu(), a_device("GPU-0", memory=size))) for n, size in enumerate(sizes))
    snapshot = Snapshot(1, workers=tuple(made), pending=(a_pending(),), estimates=Estimates(mix=mix))  # type: ignore[arg-type]
    chosen = [policy().decide(snapshot, EPOCH).places[0].worker_id for policy in (Consolidation, Assignment)]
    assert chosen == ["w0", "w1"]


@pytest.mark.parametrize("policy", [Consolidation, Assignment])
def test_a_policy_that_has_seen_another_mix_decides_as_a_new_one(policy: type[ListPolicy]) -> None:
    old = policy()
    snapshot = replace(workers((8, 2), (8, 1), (4, 4)), pending=tuple(a_pending(f"r{n}") for n in range(4)))
    mixes = [((an_alternative("gpu:2"), 0.7), (an_alternative("gpu:0.5"), 0.3)), ((an_alternative("gpu:4"), 1.0),), ()]
    for mix in mixes:
        learned = replace(snapshot, estimates=Estimates(mix=mix))  # type: ignore[arg-type]
        assert old.decide(learned, EPOCH) == policy().decide(learned, EPOCH)


def test_without_a_past_the_mix_comes_from_pending_and_running_requests() -> None:
    pending = (a_pending("r1", device="gpu:2"), a_pending("r2", device="gpu:2"), a_pending("r3"))
    snapshot = Snapshot(1, pending=pending, holders={"r4": a_pending("r4", device="gpu:0.5")})
    assert {str(word): part for word, part in request_mix(snapshot)} == {
        "2 × gpu": 0.5,
        "1 × gpu": 0.25,
        "0.5 of a gpu": 0.25,
    }


def test_a_mix_that_drifts_a_little_is_the_same_rough_mix() -> None:
    first, second = (
        rounded_request_mix(
            Snapshot(1, estimates=Estimates(mix=((an_alternative("gpu"), part), (an_alternative("gpu:2"), 1 - part))))
        )  # type: ignore[arg-type]
        for part in (0.72, 0.74)
    )
    assert first == second


def test_larger_parts_are_worth_more_and_a_whole_device_is_worth_one() -> None:
    prices = share_prices(a_mix(("gpu:0.7", 0, 0.3), ("gpu:0.3", 0, 0.4), ("gpu:0.45", 0, 0.3)))
    assert len(prices) == 1001
    assert list(prices) == sorted(prices)
    assert (prices[0], prices[299], prices[1000]) == (0.0, 0.0, 1.0)


def test_a_share_that_fits_where_nothing_else_does_costs_nothing() -> None:
    prices = share_prices(a_mix(("gpu:0.81", 0, 0.9), ("gpu:0.16", 0, 0.1)))
    assert (prices[160], prices[190], prices[810]) == pytest.approx((0.0, 0.0, 1.0))


def test_shares_of_which_two_make_a_device_cost_half_of_one() -> None:
    assert share_prices(a_mix(("gpu:0.47", 0, 1.0)))[470] == pytest.approx(0.5)


def test_without_shares_only_whole_devices_are_worth_something() -> None:
    assert share_prices(a_mix(("gpu:2", 0, 1.0))) == (0.0,) * 1000 + (1.0,)
