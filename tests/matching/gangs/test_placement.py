import math
from collections import Counter
from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.matching.bandwidth import bottleneck
from hetero_airflow.matching.gangs.placement import GangFit, GangPlacer, IdleCluster, gang_level
from hetero_airflow.matching.gangs.regions import Regions
from hetero_airflow.matching.matcher import Matcher
from hetero_airflow.matching.scoring import TightFitScorer
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.device import Device
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot
from hetero_airflow.model.topology import Level
from hetero_airflow.model.worker import Worker, WorkerState
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_worker

GIB = 2**30
FULL = DeviceUsage(1000, 40 * GIB)


def gpus(number: int, **fields: object) -> tuple[Device, ...]:
    return tuple(a_device(f"GPU-{index}", index=index, **fields) for index in range(number))


def a_host(id: str, number: int = 2, **labels: str) -> Worker:
    given = {f"hetero/{name}": value for name, value in labels.items()}
    return a_worker(id, (a_cpu(index=9), *gpus(number)), labels=given)


def a_placer(workers: list[Worker], usage: dict[tuple[str, str], DeviceUsage] | None = None) -> GangPlacer:
    index = WorkerIndex(Matcher(TightFitScorer()), Snapshot(1, tuple(workers), usage or {}))
    return GangPlacer(index, Regions(index.entries), EPOCH)


def requests_for(device: object, members: int, **fields: object) -> list[DeviceRequest]:
    return [DeviceRequest.parse(device, **fields)] * members  # type: ignore[arg-type]


def where(fit: GangFit | None, workers: list[Worker]) -> dict[str, int] | None:
    """How many members are on which worker."""
    ids = sorted(worker.id for worker in workers)
    return None if fit is None else dict(Counter(ids[placement.worker] for placement in fit.placements))


@pytest.mark.parametrize(
    ("members", "expected", "level"),
    [
        (2, {"a": 2}, Level.NUMA),
        (3, {"b": 2, "c": 1}, Level.RACK),
        (5, {"a": 2, "b": 2, "c": 1}, Level.SITE),
        (7, {"a": 2, "b": 2, "c": 2, "d": 1}, Level.ANYWHERE),
        (9, None, None),
    ],
)
def test_a_gang_is_placed_on_the_nearest_workers_with_room(
    members: int, expected: dict[str, int] | None, level: Level | None
) -> None:
    workers = [
        a_host("a", rack="r1", site="s1"),
        a_host("b", rack="r2", site="s1"),
        a_host("c", rack="r2", site="s1"),
        a_host("d", rack="r3", site="s2"),
    ]
    fit = a_placer(workers).place(requests_for("gpu", members))
    assert where(fit, workers) == expected
    assert (fit.bottleneck.level if fit and fit.bottleneck else None) == level


def test_among_equal_levels_the_fastest_network_is_taken_then_the_fewest_workers() -> None:
    slow = [a_host(name, 4, rack="r1", network_gbps="25") for name in "ab"]
    fast = [a_host(name, 2, rack="r2", network_gbps="100") for name in "cdef"]
    workers = [*slow, *fast]
    assert where(a_placer(workers).place(requests_for("gpu:2", 3)), workers) == {"c": 1, "d": 1, "e": 1}
    even = [a_host(name, 4, rack="r1") for name in "ab"] + [a_host(name, 2, rack="r2") for name in "cdef"]
    assert where(a_placer(even).place(requests_for("gpu:2", 3)), even) == {"a": 2, "b": 1}


def test_a_gang_on_several_sites_uses_the_fastest_links() -> None:
    sites = (("a", "berlin", "1"), ("b", "oslo", "40"), ("c", "turin", "40"), ("d", "york", "10"))
    workers = [a_host(name, site=site, site_gbps=gbps) for name, site, gbps in sites]
    placer = a_placer(workers)
    fit = placer.place(requests_for("gpu:2", 2))
    assert where(fit, workers) == {"b": 1, "c": 1}
    assert fit is not None
    assert str(fit.bottleneck) == "3.12 GB/s (anywhere)", "a quarter of the cards' 100 Gbit/s: less than the link's 40"
    fit = placer.place(requests_for("gpu:2", 4))
    assert str(fit and fit.bottleneck) == "0.125 GB/s (anywhere)", "one of them is behind 1 Gbit/s"


def test_a_gang_stays_on_one_site_even_if_links_to_others_are_faster() -> None:
    workers = [a_host(name, site="berlin", network_gbps="10", site_gbps="100") for name in "ab"]
    workers += [a_host("c", site="oslo", network_gbps="10", site_gbps="100")]
    assert where(a_placer(workers).place(requests_for("gpu:2", 2)), workers) == {"a": 1, "b": 1}


def test_slow_workers_of_a_rack_are_used_only_if_the_fast_ones_have_no_room() -> None:
    workers = [a_host(name, rack="r", network_gbps=gbps) for name, gbps in (("a", "10"), ("b", "100"), ("c", "100"))]
    assert where(a_placer(workers).place(requests_for("gpu:2", 2)), workers) == {"b": 1, "c": 1}
    assert where(a_placer(workers).place(requests_for("gpu:2", 3)), workers) == {"a": 1, "b": 1, "c": 1}


def test_a_hard_level_is_respected() -> None:
    workers = [a_host("a", rack="r1"), a_host("b", rack="r2")]
    placer = a_placer(workers)
    assert where(placer.place(requests_for("gpu:2", 2, topology="rack")), workers) is None
    assert where(placer.place(requests_for("gpu:2", 2, topology="site")), workers) == {"a": 1, "b": 1}
    assert where(placer.place(requests_for("gpu:2", 2, topology="rack@10m")), workers) == {"a": 1, "b": 1}
    assert where(placer.place(requests_for("gpu", 2, topology="host")), workers) == {"a": 2}
    assert (
        placer.member_capacity(requests_for("gpu", 1, topology="host")[0].alternatives[0], 9),
        placer.member_capacity(requests_for("gpu", 1)[0].alternatives[0], 9),
    ) == (2, 4)


def test_two_workers_of_one_host_are_one_host() -> None:
    workers = [a_worker(name, gpus(1), host="box") for name in "ab"] + [a_worker("c", gpus(1))]
    fit = a_placer(workers).place(requests_for("gpu", 2, topology="host"))
    assert (where(fit, workers), fit and fit.bottleneck and fit.bottleneck.level) == ({"a": 1, "b": 1}, Level.HOST)


def test_all_members_get_the_same_alternative() -> None:
    v100 = a_worker("v", gpus(1, model="v100", memory="16GiB"))
    k80 = a_worker("k", gpus(2, model="k80", memory="12GiB"))
    workers = [v100, k80]
    for device in (["v100", "k80"], {"v100", "k80"}):
        fit = a_placer(workers).place(requests_for(device, 2))
        assert where(fit, workers) == {"k": 2}
    assert a_placer(workers).place(requests_for(["v100", "k80"], 3)) is None


def test_unequal_members_are_packed_largest_first() -> None:
    workers = [a_host("a", 1), a_host("b", 4)]
    requests = [*requests_for("gpu", 1), *requests_for("gpu:4", 1), *requests_for("cpu:2", 1)]
    fit = a_placer(workers).place(requests)
    assert fit is not None
    assert sorted((placement.member, workers[placement.worker].id) for placement in fit.placements)[:2] == [
        (0, "a"),
        (1, "b"),
    ]


def test_leased_devices_are_not_used() -> None:
    workers = [a_host("a"), a_host("b")]
    placer = a_placer(workers, {("a", "GPU-0"): FULL})
    assert where(placer.place(requests_for("gpu:2", 2)), workers) is None
    assert where(placer.place(requests_for("gpu", 3)), workers) == {"a": 1, "b": 2}


def test_an_idle_cluster_has_no_leases() -> None:
    matcher = Matcher(TightFitScorer())
    hosts = (a_host("a"), a_host("b"), a_host("c").model_copy(update={"state": WorkerState.LOST}))
    index = WorkerIndex(matcher, Snapshot(1, hosts, {("a", "GPU-0"): FULL}))
    idle = IdleCluster(index.entries, matcher)
    assert [idle.fits_when_idle(requests_for("gpu:2", members)) for members in (2, 3)] == [True, False]
    assert idle.member_capacity(requests_for("gpu:2", 1)[0].alternatives[0], 9) == 2
    assert idle.max_members(requests_for("gpu:2", 1)[0].alternatives[0]) == 3
    assert sorted(index.first_workers()) == [0, 1, 2]


def test_placements_between_two_calls_are_taken_in() -> None:
    hosts = [a_host("a"), a_host("b")]
    index = WorkerIndex(Matcher(TightFitScorer()), Snapshot(1, tuple(hosts)))
    placer = GangPlacer(index, Regions(index.entries), EPOCH)
    seen = []
    for _ in range(3):
        fit = placer.place(requests_for("gpu", 2))
        seen.append(where(fit, hosts))
        for placement in fit.placements if fit else ():
            index.take(placement.worker, placement.fit, EPOCH)
    assert seen == [{"a": 2}, {"b": 2}, None]


def test_only_hard_levels_beyond_the_worker_limit_a_gang() -> None:
    texts = ["nvlink", "rack@5m", "site", "host"]
    alternatives = [DeviceRequest.parse("gpu:2", topology=text).alternatives[0] for text in texts]
    assert gang_level(alternatives[:2]) is Level.ANYWHERE
    assert gang_level(alternatives) is Level.HOST


# Against brute force.


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Worker], dict[tuple[str, str], DeviceUsage]]:
    workers, usage = [], {}
    for number in range(draw(st.integers(1, 4))):
        labels = {"network_gbps": draw(st.sampled_from(["10", "100"]))}
        labels |= draw(st.sampled_from([{}, {"rack": "r1"}, {"rack": "r2"}, {"rack": "r1", "site": "s"}]))
        workers.append(a_host(f"w{number}", draw(st.integers(1, 4)), **labels))
        for device in workers[-1].devices[1:]:
            if draw(st.booleans()):
                usage[workers[-1].id, device.id] = FULL
    return workers, usage


@settings(max_examples=200, deadline=None)
@given(clusters(), st.integers(1, 2), st.integers(1, 4), st.sampled_from([None, "host", "rack", "site"]))
def test_a_gang_is_placed_if_possible_and_with_the_fastest_bottleneck(
    cluster: tuple[list[Worker], dict[tuple[str, str], DeviceUsage]], count: int, members: int, topology: str | None
) -> None:
    workers, usage = cluster
    free = [[d for d in w.devices[1:] if (w.id, d.id) not in usage] for w in workers]
    possible = []
    for chosen in combinations_with_replacement(range(len(workers)), members):
        needed = {worker: number * count for worker, number in Counter(chosen).items()}
        if all(len(free[worker]) >= number for worker, number in needed.items()):
            slowest = bottleneck([(workers[worker], free[worker][:number]) for worker, number in needed.items()])
            if slowest is None or topology is None or slowest.level.rank <= Level(topology).rank:
                possible.append((-(math.inf if slowest is None else slowest.bytes_per_s), len(needed)))
    fit = a_placer(workers, usage).place(requests_for(f"gpu:{count}", members, topology=topology))
    assert (fit is None) is (not possible)
    if fit is not None:
        speed = math.inf if fit.bottleneck is None else fit.bottleneck.bytes_per_s
        assert (-speed, len(fit.workers)) == min(possible)
        assert sorted(placement.member for placement in fit.placements) == list(range(members))
