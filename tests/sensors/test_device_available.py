from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException

from hetero_airflow.contract.envelope import unpack_request
from hetero_airflow.contract.placement_check import PlacementAnswer, add_answer, is_placement_check
from hetero_airflow.sensors import DeviceAvailableSensor


def context(answer=None):
    return {"ti": SimpleNamespace(context_carrier=add_answer({}, answer) if answer else None)}


def test_it_asks_what_a_device_task_would_and_is_marked_as_a_probe():
    sensor = DeviceAvailableSensor(task_id="room", device="a100:2", quota={"cpus": 4}, timeout=60)
    request = unpack_request(sensor.executor_config, -1)
    assert is_placement_check(sensor.executor_config)
    assert (str(request.alternatives[0]), request.wait_timeout_s) == ("2 × nvidia/a100 (cpus=4)", 60)


def test_a_request_that_cant_be_read_is_an_import_error(parsed):
    ((error,), _) = parsed('DeviceAvailableSensor(task_id="t", device="gpuu")')
    assert 'Did you mean "gpu"?' in error


def test_a_mapped_one_asks_for_each_instance(parsed):
    errors, dag = parsed(
        'DeviceAvailableSensor.partial(task_id="t", quota={"cpus": 2}, timeout=60).expand(device=["gpu", "gpu:2"])'
    )
    assert errors == []
    config = dag.get_task("t").partial_kwargs["executor_config"]
    assert is_placement_check(config)
    requests = [unpack_request(config, index) for index in (0, 1)]
    assert [str(request.alternatives[0]) for request in requests] == ["1 × gpu (cpus=2)", "2 × gpu (cpus=2)"]
    assert [request.wait_timeout_s for request in requests] == [60, 60]


def test_it_returns_where_there_is_room():
    sensor = DeviceAvailableSensor(task_id="room", device="gpu:2")
    answer = PlacementAnswer(worker_id="here", device_ids=("GPU-0", "GPU-1"))
    assert sensor.execute(context(answer)) == {"worker_id": "here", "device_ids": ["GPU-0", "GPU-1"]}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (PlacementAnswer(problem="No device in time"), AirflowSensorTimeout),
        (PlacementAnswer(problem="No known worker can ever run this", is_final=True), AirflowFailException),
    ],
)
def test_no_room_fails_it_or_skips_it_where_that_is_asked_for(answer, error):
    with pytest.raises(error, match=answer.problem):
        DeviceAvailableSensor(task_id="room", device="gpu").execute(context(answer))
    with pytest.raises(AirflowSkipException):
        DeviceAvailableSensor(task_id="room", device="gpu", soft_fail=True).execute(context(answer))


def test_without_our_executor_it_succeeds_with_a_warning(capsys):
    assert DeviceAvailableSensor(task_id="room", device="gpu").execute(context()) is None
    assert "HeteroExecutor did not check this request" in capsys.readouterr().out
