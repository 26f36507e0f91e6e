"""Tasks for hardware that no known worker has: they fail at once, or wait until a worker brings it."""

from datetime import timedelta

import pytest

from hetero_airflow.contract.placement_check import read_answer
from hetero_airflow.errors import SettingsError
from hetero_airflow.executor.configuration import read_configuration
from hetero_airflow.model.plan import Account, Reason, ReasonCode, Refuse
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.scheduling.hardware_wait import refusal_text
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import a_device, a_worker
from tests.executor.conftest import Bench


@pytest.fixture
def patient():
    """A scheduler with `[hetero] wait_for_hardware = 1m`, and a worker with two A100."""
    bench = Bench(worker=a_worker(), wait_for_hardware_s=60.0)
    yield bench
    bench.dispatcher.resolver.close()


def failure(bench):
    ((_, state, text),) = bench.reports
    assert state == "failed"
    return text


def waits(bench):
    (pending,) = bench.store.snapshot().pending
    (decision,) = bench.store.request_history("dag", "run", pending.task_id).decisions
    return decision


def test_a_task_for_other_hardware_fails_at_once_and_is_told_the_rule(bench):
    bench.hold("a", "mi300x")
    bench.beat()
    assert failure(bench).startswith("No known worker can ever run this. The nearest: worker worker-a has 2 ×")
    assert failure(bench).endswith("Such a task fails at once, since [hetero] wait_for_hardware is 0")


def test_it_waits_until_a_worker_brings_the_hardware(patient):
    patient.hold("a", "mi300x")
    patient.beat()
    patient.beat(59)
    assert (patient.reports, patient.started) == ([], [])
    assert waits(patient)["outcome"] == "wait"
    assert waits(patient)["reason"]["until"] == "2026-01-01T00:01:00.001000Z"
    assert waits(patient)["reason"]["then"] == "the task fails"
    device = a_device("GPU-0", vendor="amd", model="instinct-mi300x")
    patient.store.record([WorkerSeen(a_worker(devices=[device]))], patient.clock.now())
    patient.beat()
    assert patient.started == ["a"]


def test_it_fails_when_its_time_is_over_although_nothing_else_has_changed(patient):
    patient.hold("a", "mi300x")
    patient.beat()
    patient.beat(61)
    assert failure(patient).endswith("It has waited for such a worker for 60 s ([hetero] wait_for_hardware)")


def test_its_own_wait_timeout_can_only_shorten_this(patient):
    patient.hold("a", "mi300x", wait_timeout="20s")
    patient.beat()
    assert waits(patient)["reason"]["until"] == "2026-01-01T00:00:20.001000Z"
    patient.beat(21)
    assert failure(patient).startswith("No device in time: asked to wait at most 20 s")
    patient.reports.clear()
    patient.hold("b", "mi300x", wait_timeout="1h")
    patient.beat()
    patient.beat(61)
    assert "No known worker can ever run this" in failure(patient)


def test_the_reason_names_the_limit_that_counted(patient):
    refused = Refuse("a", Reason(ReasonCode.KIND, "amd/mi300x", "none"), "worker worker-a", Account("test", "none"))
    request = DeviceRequest.parse("mi300x", wait_timeout="20s")
    text = refusal_text(refused, request, patient.store.snapshot().workers, timedelta(minutes=1))
    assert text.endswith("It has waited for such a worker for 20 s (its wait_timeout)")


def test_a_model_that_nobody_knows_fails_at_once_with_the_nearest_name(patient):
    patient.hold("a", "nvidia/b2000")
    patient.beat()
    assert failure(patient).endswith('No worker and no table knows the model b2000. Did you mean "b200"?')


def test_a_request_with_one_known_alternative_waits(patient):
    patient.hold("a", ["nvidia/b2000", "mi300x"])
    patient.beat()
    assert patient.reports == []


def test_a_gang_waits_as_one_and_those_behind_it_are_placed(patient):
    for rank in range(2):
        patient.hold(f"rank-{rank}", "mi300x", task_id="gang", map_index=rank, gang=2)
    patient.hold("a", "gpu")
    patient.beat()
    assert patient.started == ["a"]
    patient.beat(61)
    assert sorted(key for key, *_ in patient.reports) == ["rank-0", "rank-1"]


def test_a_placement_check_waits_for_it_too(patient):
    patient.ask("room", "mi300x")
    patient.beat()
    patient.beat(59)
    assert list(patient.runs.checking) == ["room"]
    patient.beat(2)
    (workload,) = patient.engine.started
    answer = read_answer(workload.ti.context_carrier)
    assert answer.is_final
    assert "wait_for_hardware" in answer.problem


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("10m", 600.0)])
def test_the_option_is_a_duration_or_0(monkeypatch, text, seconds):
    monkeypatch.setenv("AIRFLOW__HETERO__WAIT_FOR_HARDWARE", text)
    assert read_configuration().wait_for_hardware_s == seconds


@pytest.mark.parametrize("text", ["-1", "soon", "0s"])
def test_another_text_is_refused(monkeypatch, text):
    monkeypatch.setenv("AIRFLOW__HETERO__WAIT_FOR_HARDWARE", text)
    with pytest.raises(SettingsError, match=r"wait_for_hardware"):
        read_configuration()
