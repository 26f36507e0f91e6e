"""A task that got a notice is scheduled again, however it ends."""

import json
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowRescheduleException

from hetero_airflow.checkpoints.fencing import KEY
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.contract.notice import Notice, Stopped, give_notice
from hetero_airflow.errors import RequestError, SettingsError
from hetero_airflow.operators import DeviceBashOperator, DevicePythonOperator
from hetero_airflow.operators.requeue import requeued_by_rules
from hetero_airflow.runtime.visible_devices import bound_to_lease
from hetero_airflow.settings import CHECKPOINT_VARIABLE, CONTROL_VARIABLE, LEASE_VARIABLE
from hetero_airflow.testing import EPOCH, a_signer, a_task_lease
from tests.operators.test_operators import AnInstance


def run(python_callable, context=None, **arguments):
    operator = DevicePythonOperator(task_id="t", python_callable=python_callable, device="gpu", **arguments)
    return operator.execute({"ti": AnInstance(), **(context or {})})


@pytest.fixture
def control(tmp_path, monkeypatch):
    monkeypatch.setenv(CONTROL_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def notified_control(control):
    give_notice(control, Notice(cause="urgent work", by=EPOCH))
    return control


def raising(error):
    def body():
        raise error

    return body


def test_a_task_that_says_that_it_stopped_is_rescheduled(control):
    with pytest.raises(AirflowRescheduleException):
        run(raising(Stopped(step=3, cause="urgent work")))


def test_a_task_that_fails_after_a_notice_is_rescheduled(notified_control):
    with pytest.raises(AirflowRescheduleException):
        run(raising(RuntimeError("interrupted")))


def test_a_task_that_fails_without_a_notice_fails(control):
    with pytest.raises(RuntimeError, match="my own fault"):
        run(raising(RuntimeError("my own fault")))


def test_a_task_that_ends_well_after_a_notice_has_ended_well(notified_control):
    assert run(lambda: 42) == 42


def test_a_task_that_exits_with_another_code_is_not_taken_as_stopped(notified_control):
    with pytest.raises(SystemExit):
        run(raising(SystemExit(1)))


@pytest.mark.parametrize("error", [SystemExit(3), RuntimeError("my own fault")])
def test_the_log_of_a_task_that_fails_or_exits_names_the_rule(control, error):
    lines = []
    log = SimpleNamespace(warning=lambda text, *values: lines.append(text % values))
    with pytest.raises(type(error)), requeued_by_rules({"ti": AnInstance()}, log):
        raise error
    (line,) = lines
    assert line.endswith("by the rule for unknown.")


def test_a_signal_stops_a_task_that_has_a_notice_and_no_other(control):
    operator = DevicePythonOperator(task_id="t", python_callable=print, device="gpu")
    operator.on_kill()
    give_notice(control, Notice(cause="urgent work", by=EPOCH))
    with pytest.raises(AirflowRescheduleException):
        operator.on_kill()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # Airflow's provider did not close it before 1.21
def test_a_command_that_ends_with_the_code_of_stopped_is_rescheduled(notified_control):
    operator = DeviceBashOperator(task_id="t", bash_command="exit 85", device="gpu")
    with pytest.raises(AirflowRescheduleException):
        operator.execute({"ti": AnInstance()})


class States(dict):
    def set(self, key, value):
        self[key] = json.loads(json.dumps(value))


def place_seen(context=None, **arguments):
    import os

    return CheckpointPlace.model_validate_json(
        run(lambda: os.environ[CHECKPOINT_VARIABLE], context, checkpoint=arguments or None)
    )


def test_the_task_knows_the_place_of_its_checkpoints(tmp_path):
    place = place_seen(url=f"file://{tmp_path}", keep_best="min:loss", keep_last=5)
    assert (place.url, place.path, place.epoch) == (f"file://{tmp_path}", "dag/t/run/-1", 0)
    assert (place.keep_last, place.keep_best, place.token) == (5, "min:loss", None)


def test_a_store_that_only_the_task_names_gets_the_key_before_the_tasks_code_runs(tmp_path, monkeypatch):
    signer, stranger = a_signer(), a_signer()
    for key, recorded in [(signer, signer), (stranger, signer)]:
        grant = key.sign(lease="r1.7", token=7, task="dag/t/run/-1", start_by=0)
        lease = a_task_lease(id="r1.7", token=7, grant=grant.pack())
        monkeypatch.setenv(LEASE_VARIABLE, lease.model_dump_json())
        seen = run(lambda: (tmp_path / KEY).read_text(), checkpoint={"url": tmp_path.as_uri()})
        assert seen == recorded.public_key


def test_a_cleared_task_that_is_to_go_on_takes_the_epoch_that_is_there(tmp_path):
    assert place_seen(on_clear="resume").epoch is None


def test_a_retry_finds_its_checkpoints_where_they_were_begun(tmp_path):
    states = States()
    before = place_seen({"task_state_store": states}, url=f"file://{tmp_path}/old")
    assert states["hetero.checkpoint"]["url"] == before.url
    assert place_seen({"task_state_store": states}, url=f"file://{tmp_path}/new").url == before.url
    states["hetero.checkpoint"]["epoch"] = -1  # of before a clear
    assert place_seen({"task_state_store": states}, url=f"file://{tmp_path}/new").url == f"file://{tmp_path}/new"


def test_only_the_default_place_of_a_task_that_may_go_on_elsewhere_is_bound_to_its_host(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    assert not place_seen().is_host_bound
    with bound_to_lease(a_task_lease(is_remote=False)):
        assert not place_seen().is_host_bound
    states = States()
    with bound_to_lease(a_task_lease(is_remote=True)):
        assert place_seen({"task_state_store": states}).is_host_bound
        assert not place_seen(url=f"file://{tmp_path}/shared").is_host_bound
        monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", f"file://{tmp_path}/shared")
        assert not place_seen().is_host_bound
        again = place_seen({"task_state_store": states})
    assert (again.url, again.is_host_bound) == (f"file://{tmp_path}/checkpoints", True), "it goes on where it began"


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        ("s3://x", "checkpoint"),
        ({"keep": 3}, "checkpoint['keep']"),
        ({"keep_last": 0}, "checkpoint.keep_last"),
        ({"keep_best": "loss"}, "checkpoint.keep_best"),
        ({"on_clear": "maybe"}, "checkpoint.on_clear"),
        ({1: 2}, "checkpoint[1]"),
    ],
)
def test_a_bad_argument_is_refused_when_the_file_is_parsed(argument, field):
    with pytest.raises(RequestError) as caught:
        DevicePythonOperator(task_id="t", python_callable=print, device="gpu", checkpoint=argument)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("url", "found"), [("ftp://models", "no store for the scheme 'ftp'"), ("/srv/models", "no scheme")]
)
def test_a_url_that_no_store_opens_is_refused_when_the_file_is_parsed(url, found):
    with pytest.raises(SettingsError) as caught:
        DevicePythonOperator(task_id="t", python_callable=print, device="gpu", checkpoint={"url": url})
    assert "checkpoint.url" in caught.value.asked
    assert caught.value.found == found
    assert caught.value.remedy.startswith("Set checkpoint.url to file:///shared/folder, s3://bucket/prefix,")
