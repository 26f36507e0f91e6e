from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.matching.bandwidth import device_level
from hetero_airflow.matching.feasibility import check_worker
from hetero_airflow.matching.linked_devices import closest_devices, joined_pairs, joined_sets, needed_level
from hetero_airflow.matching.matcher import Fit, Matcher
from hetero_airflow.matching.scoring import Allocation, TightFitScorer
from hetero_airflow.matching.shapes import Shape, Shapes
from hetero_airflow.model.plan import Reason, ReasonCode
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.topology import Level
from hetero_airflow.model.worker import Worker
from hetero_airflow.testing import a_cpu, a_device, a_worker

GIB = 2**30
TAKEN = Allocation(1000, 40 * GIB)


def a_host(links: dict[int, tuple[int, ...]], nodes: dict[int, int] | None = None, number: int = 4) -> Worker:
    return a_worker(
        devices=tuple(
            a_device(
                f"GPU-{i}",
                index=i,
                peers=tuple(f"GPU-{j}" for j in links.get(i, ())),
                numa_node=None if nodes is None else nodes.get(i),
            )
            for i in range(number)
        )
    )


def an_alternative(text: str, topology: str) -> Alternative:
    return DeviceRequest.parse(text, topology=topology).alternatives[0]


PAIRS = {0: (3,), 1: (2,)}


@st.composite
def hosts(draw: st.DrawFn) -> Worker:
    number = draw(st.integers(1, 7))
    links = {i: tuple(draw(st.sets(st.integers(0, number - 1))) - {i}) for i in range(number)}
    nodes = {i: draw(st.sampled_from([0, 1])) for i in range(number) if draw(st.booleans())}
    return a_host(links, nodes, number)


@given(hosts(), st.sampled_from([Level.NVLINK, Level.NUMA]), st.integers(1, 4))
def test_the_joined_sets_cover_all_sets_of_joined_pairs(worker: Worker, level: Level, count: int) -> None:
    shape = Shapes().entry(worker).shape
    positions = range(len(shape.devices))
    sets = joined_sets(shape, positions, level, count)

    def is_joined(part: tuple[int, ...]) -> bool:
        pairs = combinations((shape.devices[p] for p in part), 2)
        return all(device_level(worker, first, second).rank <= level.rank for first, second in pairs)

    expected = {part for part in combinations(positions, count) if is_joined(part)}
    assert {part for whole in sets for part in combinations(whole, count)} == expected


def test_the_meshes_of_a_large_host_are_found_in_bounded_time() -> None:
    mesh = {i: tuple(j for j in range(1000) if j // 8 == i // 8 and j != i) for i in range(1000)}
    shape = Shapes().entry(a_host(mesh, number=1000)).shape
    sets = joined_sets(shape, range(1000), Level.NVLINK, 8)
    assert sets == [tuple(range(first, first + 8)) for first in range(0, 1000, 8)]


def test_only_a_topology_without_a_budget_on_several_devices_needs_a_level() -> None:
    assert needed_level(an_alternative("gpu:2", "nvlink")) is Level.NVLINK
    assert needed_level(an_alternative("gpu:2", "nvlink@10m")) is None
    assert needed_level(an_alternative("gpu", "nvlink")) is None
    assert needed_level(an_alternative("gpu:2", "rack")) is None


def test_a_worker_without_joined_devices_is_rejected() -> None:
    assert check_worker(an_alternative("gpu:3", "nvlink"), a_host(PAIRS)) == (
        False,
        Reason(ReasonCode.TOPOLOGY, "3 × gpu (topology=nvlink)", "at most 2 joined by nvlink"),
    )
    assert check_worker(an_alternative("gpu:2", "nvlink"), a_host(PAIRS)) == (True, None)
    assert check_worker(an_alternative("gpu:4", "numa"), a_host({})) == (True, None)
    ok, reason = check_worker(an_alternative("gpu:3", "numa"), a_host({}, {0: 0, 1: 1, 2: 0, 3: 1}))
    assert (ok, reason and reason.found) == (False, "at most 2 joined by numa")


def test_an_unhealthy_device_may_join_the_others() -> None:
    devices = (
        a_device("GPU-0", index=0, peers=("GPU-1",), leasable=False, problem="too hot"),
        a_device("GPU-1", index=1),
        a_device("GPU-2", index=2),
    )
    ok, reason = check_worker(an_alternative("gpu:2", "nvlink"), a_worker(devices=devices))
    assert not ok
    assert reason == Reason(
        ReasonCode.HEALTH, "2 × gpu (topology=nvlink)", "too few healthy devices joined by nvlink: too hot"
    )


def test_only_joined_devices_are_chosen() -> None:
    matcher = Matcher(TightFitScorer())
    shape = matcher.entry(a_host(PAIRS)).shape
    alternative = an_alternative("gpu:2", "nvlink")

    def outcome(*taken: int) -> object:
        held = tuple(TAKEN if p in taken else Allocation() for p in range(4))
        match = matcher.match(alternative, matcher.state(shape, False, held), None)
        return match.chosen if isinstance(match, Fit) else (match.reason.code, match.reason.found)

    assert outcome() == (0, 3)
    assert outcome(0) == (1, 2)
    assert outcome(0, 1) == (ReasonCode.SCATTERED, "2 free, at most 1 joined by nvlink")
    assert outcome(0, 1, 2) == (ReasonCode.BUSY, "1 of 4 free")


def test_the_best_of_several_joined_sets_is_taken() -> None:
    devices = (
        a_device("GPU-0", "a100-80gb", "80GiB", index=0, numa_node=0),
        a_device("GPU-1", "a100-80gb", "80GiB", index=1, numa_node=0),
        a_device("GPU-2", index=2, numa_node=1),
        a_device("GPU-3", index=3, numa_node=1),
    )
    matcher = Matcher(TightFitScorer())
    shape = matcher.entry(a_worker(devices=(*devices, a_cpu(index=9)))).shape
    fit = matcher.match(an_alternative("gpu:2", "numa"), matcher.state(shape, False, (Allocation(),) * 5), None)
    assert isinstance(fit, Fit)
    assert fit.chosen == (2, 3)


def a_shape(links: dict[int, tuple[int, ...]], nodes: dict[int, int], number: int) -> Shape:
    devices = tuple(
        a_device(f"GPU-{i}", index=i, peers=tuple(f"GPU-{j}" for j in links.get(i, ())), numa_node=nodes.get(i))
        for i in range(number)
    )
    return Shapes().entry(a_worker(devices=devices)).shape


CROSSED_PAIRS = {0: (3,), 3: (0,), 1: (2,), 2: (1,)}


def test_linked_devices_are_chosen_together() -> None:
    shape = a_shape(CROSSED_PAIRS, {}, 4)
    assert closest_devices(shape, [0, 1, 2, 3], 2) == (0, 3)
    assert closest_devices(shape, [1, 2, 3], 2) == (1, 2)


def test_without_links_one_numa_node_is_chosen() -> None:
    shape = a_shape({}, {0: 0, 1: 1, 2: 1, 3: 0}, 4)
    assert closest_devices(shape, [0, 1, 2, 3], 2) == (0, 3)
    assert closest_devices(shape, [1, 2, 3], 2) == (1, 2)


def test_links_count_for_more_than_the_numa_node() -> None:
    assert closest_devices(a_shape(CROSSED_PAIRS, {0: 0, 1: 0, 2: 1, 3: 1}, 4), [0, 1, 2, 3], 2) == (0, 3)


def test_four_of_two_meshes_are_taken_from_one() -> None:
    mesh = {i: tuple(j for j in range(8) if j % 2 == i % 2 and j != i) for i in range(8)}
    shape = a_shape(mesh, {}, 8)
    assert closest_devices(shape, [0, 1, 2, 3, 5, 7], 4) == (1, 3, 5, 7)
    assert joined_pairs(shape, (1, 3, 5, 7)) == (6, 0)


def test_ties_go_to_the_order_of_preference() -> None:
    shape = a_shape({}, {}, 4)
    assert closest_devices(shape, [3, 1, 2, 0], 2) == (1, 3)
    assert closest_devices(shape, [3, 1, 2, 0], 4) == (0, 1, 2, 3)


def test_thousands_of_devices_are_chosen_in_bounded_time() -> None:
    ring = {i: ((i + 1) % 3000, (i - 1) % 3000) for i in range(3000)}
    shape = a_shape(ring, {i: i % 2 for i in range(3000)}, 3000)
    chosen = closest_devices(shape, range(3000), 64)
    assert joined_pairs(shape, chosen)[0] == 63
    assert joined_pairs(shape, tuple(range(300))) == (299, 2 * (150 * 149 // 2))
