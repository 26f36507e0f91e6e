from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.recovery.adjustment import adjusted_request, request_after_waiting
from hetero_airflow.recovery.failure import Failure, FailureClass
from hetero_airflow.recovery.rules import DEFAULTS, parse_rules
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_worker

GIB = 2**30
SMALL = a_worker("small", (a_cpu(), a_device("GPU-1", "rtx-4090", "24GiB")))
LARGE = a_worker("large", (a_cpu(), a_device("GPU-2", "a100", "80GiB")))
FLEET = [SMALL, LARGE]


def a_failure(failure_class="device_memory", token=1, epoch=0, worker="small", **fields):
    at = EPOCH + timedelta(seconds=token)
    given = {"evidence": "x", "worker": worker, "device_ids": ("GPU-1",)} | fields
    return Failure(failure_class=failure_class, at=at, epoch=epoch, token=token, **given)


def now_asks(request, failures, workers=FLEET, epoch=0, rules=DEFAULTS):
    request, messages = adjusted_request(request, failures, rules, workers, epoch=epoch)
    return str(request), messages


def test_without_a_failure_since_the_last_clear_a_request_is_as_it_was_written():
    request = DeviceRequest.parse("gpu")
    assert adjusted_request(request, [], DEFAULTS, FLEET, epoch=0) == (request, [])
    assert adjusted_request(request, [a_failure(memory_bytes=24 * GIB)], DEFAULTS, FLEET, epoch=1) == (request, [])


def test_a_request_asks_for_more_memory_and_says_why():
    assert now_asks(DeviceRequest.parse("gpu", quota={"memory": "24GiB.."}), [a_failure(memory_bytes=24 * GIB)]) == (
        "1 × gpu (memory=48GiB..)",
        [
            "Asks for 1 × gpu (memory=48GiB..) instead of 1 × gpu (memory=24GiB..), after it ran out of device memory "
            "on GPU-1 of small."
        ],
    )


def test_an_alternative_that_can_not_have_more_is_left_out_while_another_can():
    text, messages = now_asks(DeviceRequest.parse(["rtx-4090", "a100"]), [a_failure(memory_bytes=24 * GIB)])
    assert text == "1 × nvidia/a100 (memory=48GiB..)"
    assert messages[0].startswith("Asks for 1 × nvidia/a100 (memory=48GiB..) instead of 1 × nvidia/rtx-4090 or")


def test_a_request_that_can_not_have_more_memory_says_so():
    text, messages = now_asks(DeviceRequest.parse("rtx-4090"), [a_failure(memory_bytes=24 * GIB)])
    assert text == "1 × nvidia/rtx-4090 (memory=24GiB..)"
    assert messages[0].endswith("no known worker can give it more.")


def test_several_causes_add_up():
    failures = [
        a_failure(memory_bytes=24 * GIB),
        a_failure("host_memory", 2, worker="large", host_memory_bytes=8 * GIB),
        a_failure("network", 3, worker="large"),
    ]
    fleet = [*FLEET, a_worker("other", (a_cpu(), a_device("GPU-3", "h100", "80GiB")))]
    text, messages = now_asks(DeviceRequest.parse("gpu"), failures, fleet)
    assert text == "1 × gpu (memory=48GiB.., host_memory=16GiB, hetero/failed=!large)"
    assert [sentence.split(",")[-1] for sentence in messages] == [
        " after it ran out of device memory on GPU-1 of small.",
        " after it ran out of host memory on GPU-1 of large.",
        " where it had a network failure.",
    ]


def test_an_avoidance_that_no_worker_could_serve_is_dropped_with_a_message():
    text, messages = now_asks(DeviceRequest.parse("a100"), [a_failure("network", worker="large")])
    assert text == "1 × nvidia/a100"
    assert messages == [
        "May run on large again, though it had a network failure there: no other known worker can serve it."
    ]


def test_the_table_can_switch_each_change_off():
    rules = parse_rules('{"device_memory": {"memory": null}, "network": {"avoid": null}}')
    failures = [a_failure(memory_bytes=24 * GIB), a_failure("network", 2)]
    assert now_asks(DeviceRequest.parse("gpu"), failures, rules=rules) == ("1 × gpu", [])


def test_the_rest_of_a_request_stays():
    request = DeviceRequest.parse({"gpu", "npu"}, priority="high", wait_timeout="2h", topology="nvlink")
    now, _ = adjusted_request(request, [a_failure(memory_bytes=24 * GIB)], DEFAULTS, FLEET, epoch=0)
    assert (now.is_ordered, now.priority, now.wait_timeout_s) == (False, request.priority, 7200)
    assert all(alternative.topology == request.alternatives[0].topology for alternative in now.alternatives)


def test_after_waiting_the_next_alternative_is_tried_first_and_none_is_lost():
    request = DeviceRequest.parse(["gpu:8", "gpu:4", "gpu:2"])
    orders = [str(request_after_waiting(request, minutes * 60, DEFAULTS)[0]) for minutes in (29, 30, 60, 6000)]
    assert orders == [
        "8 × gpu or 4 × gpu or 2 × gpu",
        "4 × gpu or 2 × gpu or 8 × gpu",
        "2 × gpu or 8 × gpu or 4 × gpu",
        "2 × gpu or 8 × gpu or 4 × gpu",
    ]


def test_a_request_without_an_order_or_with_a_kept_one_stays_as_written():
    ordered, free = DeviceRequest.parse(["gpu:8", "gpu:4"]), DeviceRequest.parse({"gpu:8", "gpu:4"})
    assert request_after_waiting(free, 1e6, DEFAULTS) == (free, [])
    assert request_after_waiting(ordered, 1e6, parse_rules('{"waiting": {"action": "keep"}}')) == (ordered, [])
    assert request_after_waiting(DeviceRequest.parse("gpu"), 1e6, DEFAULTS)[1] == []


@given(
    st.lists(
        st.builds(
            a_failure,
            st.sampled_from(list(FailureClass)),
            token=st.integers(1, 20),
            epoch=st.integers(0, 1),
            worker=st.sampled_from(["small", "large", "gone"]),
            memory_bytes=st.one_of(st.none(), st.integers(1, 200).map(lambda size: size * GIB)),
            host_memory_bytes=st.one_of(st.none(), st.integers(1, 200).map(lambda size: size * GIB)),
        ),
        max_size=8,
    ),
    st.sampled_from(["gpu", "gpu:0.5", "cpu:4", ["rtx-4090", "a100:1", "cpu:2"]]),
)
def test_an_adjusted_request_is_valid_and_the_same_for_the_same_failures(failures, device):
    request = DeviceRequest.parse(device)
    now, messages = adjusted_request(request, failures, DEFAULTS, FLEET, epoch=0)
    assert adjusted_request(request, failures, DEFAULTS, FLEET, epoch=0) == (now, messages)
    assert DeviceRequest.model_validate_json(now.model_dump_json()) == now
    assert (now == request) or messages
