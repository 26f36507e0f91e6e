from __future__ import annotations

from hetero_airflow.matching.linked_devices import closest_devices, joined_pairs
from hetero_airflow.matching.shapes import Shape, Shapes
from hetero_airflow.testing import a_device, a_worker


def a_shape(links: dict[int, tuple[int, ...]], nodes: dict[int, int], number: int) -> Shape:
    devices = tuple(
        a_device(f"GPU-{i}", index=i, peers=tuple(f"GPU-{j}" for j in links.get(i, ())), numa_node=nodes.get(i))
        for i in range(number)
    )
    return Shapes().entry(a_worker(devices=devices)).shape


PAIRS = {0: (3,), 3: (0,), 1: (2,), 2: (1,)}


def test_linked_devices_are_chosen_together() -> None:
    shape = a_shape(PAIRS, {}, 4)
    assert closest_devices(shape, [0, 1, 2, 3], 2) == (0, 3)
    assert closest_devices(shape, [1, 2, 3], 2) == (1, 2)


def test_without_links_one_numa_node_is_chosen() -> None:
    shape = a_shape({}, {0: 0, 1: 1, 2: 1, 3: 0}, 4)
    assert closest_devices(shape, [0, 1, 2, 3], 2) == (0, 3)
    assert closest_devices(shape, [1, 2, 3], 2) == (1, 2)


def test_links_count_for_more_than_the_numa_node() -> None:
    assert closest_devices(a_shape(PAIRS, {0: 0, 1: 0, 2: 1, 3: 1}, 4), [0, 1, 2, 3], 2) == (0, 3)


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
