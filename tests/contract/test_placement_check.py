from hetero_airflow.contract.envelope import pack_request, unpack_request
from hetero_airflow.contract.placement_check import (
    PlacementAnswer,
    add_answer,
    is_placement_check,
    pack_placement_check,
    read_answer,
)


def test_a_probe_is_marked_and_still_a_request():
    packed = {"hetero": pack_placement_check([{"device": "gpu:2"}])}
    assert is_placement_check(packed)
    assert str(unpack_request(packed, -1)) == "2 × gpu"
    assert not is_placement_check({"hetero": pack_request([{"device": "gpu:2"}])})
    assert not is_placement_check({"hetero": None})
    assert not is_placement_check(None)


def test_the_answer_travels_with_the_workload():
    answer = PlacementAnswer(worker_id="here", device_ids=("GPU-1",))
    carrier = add_answer({"traceparent": "1"}, answer)
    assert carrier["traceparent"] == "1"
    assert read_answer(carrier) == answer
    assert read_answer({}) is read_answer(None) is None
