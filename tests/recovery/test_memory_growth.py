import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.matching.shapes import Shapes
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.recovery.adjustment import with_device_memory, with_host_memory
from hetero_airflow.recovery.rules import Action, Rule
from hetero_airflow.testing import a_cpu, a_device, a_worker

GIB = 2**30
RULE = Rule(Action.REQUEUE, memory=2.0)


def shapes_of(*workers):
    shapes = Shapes()
    return [shapes.entry(worker).shape for worker in workers]


def of_sizes(*gib, **fields):
    devices = tuple(a_device(f"GPU-{n}", "a100", f"{size}GiB", index=n, **fields) for n, size in enumerate(gib))
    return a_worker("w" + "-".join(map(str, gib)), (a_cpu(), *devices))


def a_request(device="gpu", **quota):
    return DeviceRequest.parse(device, quota=quota or None).alternatives[0]


def failed(*gib):
    return [None if size is None else size * GIB for size in gib]


@pytest.mark.parametrize(
    ("alternative", "had", "fleet", "expected", "is_larger"),
    [
        # from the device where it failed, not from the request
        (a_request(), [24], [24, 80], "1 × gpu (memory=48GiB..)", True),
        (a_request(memory="24GiB.."), [80], [24, 80, 192], "1 × gpu (memory=160GiB..)", True),
        # from the request, if the device's memory is not known
        (a_request(memory="24GiB.."), [None], [24, 48], "1 × gpu (memory=48GiB..)", True),
        (a_request(memory="12GiB.."), [None, None], [12, 24, 80], "1 × gpu (memory=48GiB..)", True),
        (a_request(), [None], [24, 80], "1 × gpu", False),
        # up to the largest that exists
        (a_request(), [24, 48], [24, 48, 80], "1 × gpu (memory=80GiB..)", True),
        (a_request(), [24, 48, 80], [24, 48, 80], "1 × gpu (memory=80GiB..)", False),
        (a_request(), [24], [24], "1 × gpu (memory=24GiB..)", False),
        (a_request(), [24], [], "1 × gpu", False),
        # nearly twice is enough: makers' sizes are less than round numbers
        (a_request(), [24], [24, 45, 80], "1 × gpu (memory=45GiB..)", True),
        (a_request(), [24], [24, 32, 80], "1 × gpu (memory=48GiB..)", True),
        # up to the user's limit
        (a_request(memory="..40GiB"), [24], [24, 32, 80], "1 × gpu (memory=32GiB..40GiB)", True),
        (a_request(memory="20GiB..40GiB"), [24], [24, 80], "1 × gpu (memory=24GiB..40GiB)", False),
        # a share becomes a whole device if no larger device can make it larger
        (a_request("gpu:0.5"), [20], [40, 80], "0.5 of a gpu (memory=40GiB..)", True),
        (a_request("gpu:0.5"), [20], [40], "1 × gpu (memory=40GiB..)", True),
        (a_request("gpu:0.5"), [20, 40], [40], "1 × gpu (memory=40GiB..)", False),
        # a CPU has no device memory
        (a_request("cpu:2"), [24], [24, 80], "2 × cpu", False),
    ],
)
def test_memory_doubles_up_to_the_largest_device(alternative, had, fleet, expected, is_larger):
    growth = with_device_memory(alternative, failed(*had), RULE, shapes_of(*(of_sizes(size) for size in fleet)))
    assert (str(growth.alternative), growth.is_larger) == (expected, is_larger)


def test_one_worker_must_have_enough_devices_of_the_size():
    fleet = shapes_of(of_sizes(24, 24), of_sizes(48, 48, 80), of_sizes(80))
    growth = with_device_memory(a_request("gpu:2"), failed(24, 48), RULE, fleet)
    assert str(growth.alternative) == "2 × gpu (memory=48GiB..)"
    assert not growth.is_larger


def test_only_devices_that_match_the_request_count():
    fleet = shapes_of(of_sizes(24), of_sizes(192, vendor="amd"))
    assert not with_device_memory(a_request("nvidia"), failed(24), RULE, fleet).is_larger
    assert with_device_memory(a_request("gpu"), failed(24), RULE, fleet).is_larger


def test_the_table_can_set_the_limit_and_the_factor():
    fleet = shapes_of(of_sizes(24), of_sizes(40), of_sizes(80))
    rule = Rule(Action.REQUEUE, memory=2.0, memory_limit=40 * GIB)
    assert str(with_device_memory(a_request(), failed(24), rule, fleet).alternative) == "1 × gpu (memory=40GiB..)"
    rule = Rule(Action.REQUEUE, memory=1.5)
    assert str(with_device_memory(a_request(), failed(24), rule, fleet).alternative) == "1 × gpu (memory=36GiB..)"


@pytest.mark.parametrize(
    ("alternative", "had", "expected", "is_larger"),
    [
        (a_request("gpu", host_memory="16GiB"), [None], 32, True),
        (a_request("gpu", host_memory="16GiB"), [20], 40, True),
        (a_request("gpu", host_memory="16GiB"), [16, 32, 64], 64, False),
        (a_request("gpu", host_memory="48GiB"), [None], 64, True),
        (a_request("cpu:2", host_memory="8GiB"), [None], 16, True),
        (a_request("gpu"), [10], 20, True),
        (a_request("gpu"), [None], None, False),
        (a_request("h100", host_memory="16GiB"), [None], 16, False),
    ],
)
def test_host_memory_doubles_up_to_that_of_the_largest_host(alternative, had, expected, is_larger):
    growth = with_host_memory(alternative, failed(*had), RULE, shapes_of(of_sizes(24)))
    size = growth.alternative.host_memory
    assert (None if size is None else size // GIB, growth.is_larger) == (expected, is_larger)


def test_the_table_can_set_a_limit_of_host_memory():
    rule = Rule(Action.REQUEUE, memory=2.0, memory_limit=24 * GIB)
    growth = with_host_memory(a_request("gpu", host_memory="16GiB"), failed(None), rule, shapes_of(of_sizes(24)))
    assert growth.alternative.host_memory == 24 * GIB


SIZES = st.integers(1, 200)


@given(
    st.lists(SIZES, min_size=1, max_size=5),
    st.lists(st.one_of(st.none(), SIZES), max_size=5),
    st.sampled_from(
        [
            a_request(),
            a_request("gpu:0.5"),
            a_request("gpu:2"),
            a_request(memory="8GiB.."),
            a_request(memory="4GiB..64GiB"),
        ]
    ),
    st.floats(1.05, 8),
)
def test_memory_never_shrinks_and_never_passes_what_exists(fleet, had, alternative, factor):
    rule = Rule(Action.REQUEUE, memory=factor)
    shapes = shapes_of(*(of_sizes(size, size) for size in fleet))
    minimum = (alternative.memory.minimum if alternative.memory else None) or 0
    for number in range(len(had) + 1):
        growth = with_device_memory(alternative, failed(*had[:number]), rule, shapes)
        assert with_device_memory(alternative, failed(*had[:number]), rule, shapes) == growth
        memory = growth.alternative.memory
        now = (memory.minimum if memory else None) or 0
        assert now >= minimum
        if growth.alternative != alternative:
            assert now <= max(fleet) * GIB
        if growth.is_larger:
            assert now > max((size * GIB for size in had[:number] if size), default=0)
        minimum = now
