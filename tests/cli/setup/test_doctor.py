from types import SimpleNamespace

import pytest

from hetero_airflow.cli.setup import doctor
from hetero_airflow.errors import HeteroError

SEEN = {"host": "a", "python": "3.11.2", "lease": "1 × nvidia/a100 on a", "variables": None, "torch": None}


@pytest.mark.parametrize(
    ("state", "seen", "expected"),
    [
        ("success", SEEN, "Device tasks work here. This one took 6.2 s"),
        ("success", SEEN | {"torch": "torch is not installed there"}, "On its device, torch is not installed there"),
        ("success", SEEN | {"lease": None}, "Device tasks run, but have no own devices."),
        ("success", {}, "in this installation's own XCom backend"),
        ("failed", {}, "The task did not succeed."),
    ],
)
def test_the_verdict_says_what_the_run_shows(state, seen, expected):
    assert expected in "\n".join(doctor.verdict(state, seen, 6.2))


def test_a_cpu_core_in_place_of_an_accelerator_is_no_silent_success():
    on_cpu = SEEN | {"lease": "1 × cpu on a", "kind": "cpu"}
    said = "It has a CPU core: none of gpu, npu is known or free."
    assert said in "\n".join(doctor.verdict("success", on_cpu, 6.2, ["gpu", "npu", "cpu"]))
    assert "It has a CPU core" not in "\n".join(doctor.verdict("success", on_cpu, 6.2, ["cpu:4"]))


def test_without_our_executor_it_says_what_to_set(monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    with pytest.raises(HeteroError, match=r"no HeteroExecutor in \[core\] executor = LocalExecutor"):
        doctor.check_scheduler()


@pytest.mark.parametrize("alive", [None, SimpleNamespace(is_alive=lambda: False, latest_heartbeat="12:00")])
def test_without_a_scheduler_it_says_so(monkeypatch, alive):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "hetero_airflow.executor.HeteroExecutor")
    monkeypatch.setattr(doctor, "most_recent_job", lambda *_, **__: alive)
    with pytest.raises(HeteroError, match=r"no scheduler (has ever run|is alive; the last one was heard of at 12:00)"):
        doctor.check_scheduler()


def test_without_a_writable_bundle_it_names_those_that_are_there(monkeypatch):
    bundles = [SimpleNamespace(name="git-dags"), SimpleNamespace(name="s3-dags")]
    monkeypatch.setattr(doctor, "DagBundlesManager", lambda: SimpleNamespace(get_all_dag_bundles=lambda: bundles))
    with pytest.raises(HeteroError, match=r"no local DAG bundle that is a writable folder \(git-dags, s3-dags\)"):
        doctor.writable_bundle()
