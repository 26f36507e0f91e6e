"""The real ``airflow hetero plan``, ``simulate`` and ``snapshot``."""

import gzip
import json
from pathlib import Path

import pytest

DAG = """
from airflow.sdk import DAG, task
from datetime import timedelta

print("a file may print")
with DAG("nightly", params={"size": 1}, dagrun_timeout=timedelta(hours=1)):

    @task
    def fetch(): ...

    @task.device(device="a100:{{ params.size }}", execution_timeout=timedelta(minutes=30))
    def train(data): ...

    @task.device(device="cpu")
    def score(part): ...

    score.partial().expand(part=[1, 2, 3]) << train(fetch())
"""


@pytest.fixture
def dag_file(tmp_path) -> Path:
    path = tmp_path / "nightly.py"
    path.write_text(DAG)
    return path


def test_a_dag_file_is_rehearsed_on_the_live_workers(installation, dag_file):
    done = installation.run("hetero", "plan", str(dag_file), "--deadline", "3h", "--json")
    document = json.loads(done.stdout)
    tasks = {task["id"]: task for task in document["tasks"]}
    assert list(tasks) == ["fetch", "train", "score[0]", "score[1]", "score[2]"]
    assert (document["dag_id"], document["policy"], document["standing"]) == ("nightly", "assignment", 3)
    assert tasks["fetch"] == {
        "id": "fetch", "request": None, "worker": None, "device_class": None, "wait_s": 0.0,
        "start_s": [0.0, 0.0, 0.0], "end_s": [600.0, 600.0, 600.0], "is_assumed": True,
    }  # fmt: skip
    assert (tasks["train"]["request"], tasks["train"]["worker"]) == ("1 × nvidia/a100", "worker-a")
    assert tasks["score[2]"]["start_s"] == tasks["train"]["end_s"]
    assert (done.returncode, document["misses"]) == (0, [])


def test_a_finding_makes_the_exit_code_1(installation, dag_file):
    options = ("--conf", '{"size": 9}', "--assume", "40m", "--deadline", "30m")
    done = installation.run("hetero", "plan", str(dag_file), *options)
    assert done.returncode == 1, done.stderr
    assert (
        "MISS train: no known worker could ever run 9 × nvidia/a100: count: asked 9 × nvidia/a100, found 1"
        in done.stdout
    )
    assert "MISS score[0]: comes after train, which would not end well" in done.stdout
    assert "MISS fetch: ends the run after 2400 s, later than 1800 s" in done.stdout


def test_a_saved_snapshot_replaces_the_live_one(installation, unmigrated, dag_file, tmp_path):
    saved = installation.run("hetero", "snapshot")
    (tmp_path / "snapshot.json").write_text(saved.stdout)
    options = ("--snapshot", str(tmp_path / "snapshot.json"), "--json")
    there = json.loads(unmigrated.run("hetero", "plan", str(dag_file), *options).stdout)
    here = json.loads(installation.run("hetero", "plan", str(dag_file), *options).stdout)
    assert there == here
    assert there["standing"] == 3


def test_a_simulated_cluster_needs_no_scheduler_and_no_table(unmigrated, dag_file):
    done = unmigrated.run("hetero", "plan", "--cluster", "a100=2", str(dag_file), "--assume", "1m")
    assert (done.returncode, done.stderr) == (0, "a file may print\n")
    assert "the simulated cluster 'a100=2'" in done.stdout


def test_bad_input_is_an_error_that_says_so(unmigrated, tmp_path):
    path = tmp_path / "dag.py"
    path.write_text("import a_module_that_is_not_there\n")
    assert " ".join(unmigrated.complaint("plan", str(path)).split()) == (
        f"hetero_airflow can't plan '{path}'; found an import error in dag.py, line 1: "
        "ModuleNotFoundError: No module named 'a_module_that_is_not_there'. Install what it imports, or fix it there."
    )


@pytest.fixture
def traces(tmp_path) -> Path:
    rows = "\n".join(f"{n},{n * 100.0},ResNet-18 (batch size 64),1,{9000 + n},24.0,22.0,7.0" for n in range(20))
    header = "job_id,arrival_s,job_type,gpus,total_steps,thr_v100,thr_p100,thr_k80\n"
    (tmp_path / "gavel").mkdir()
    with gzip.open(tmp_path / "gavel" / "tiny.csv.gz", "wt") as file:
        file.write(header + rows + "\n")
    return tmp_path


def test_a_trace_is_simulated_the_same_each_time(unmigrated, traces):
    what = ("--trace", "gavel/tiny", "--cluster", "v100=2,k80=1", "--policy", "fifo", "--compare", "round_robin")
    command = ("hetero", "simulate", *what, "--restart-cost", "60", "--uptime", "5000", "--seed", "3", "--json")
    first = unmigrated.run(*command, HETERO_AIRFLOW_TRACES=str(traces))
    again = unmigrated.run(*command, "--traces", str(traces))
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    document = json.loads(first.stdout)
    assert [policy["policy"] for policy in document["policies"]] == ["fifo", "round_robin"]
    assert document["simulated"] is True
    assert [policy["all"]["finished"] for policy in document["policies"]] == [20, 20]
    assert document["policies"][0]["options"] == {
        "knowledge": "speeds",
        "restart_s": 60,
        "mean_uptime_s": 5000,
        "seed": 3,
    }


def test_a_simulation_is_shown_as_a_table(unmigrated, traces):
    options = ("--trace", "gavel/tiny", "--cluster", "v100=2", "--jobs", "5..14", "--timing", "--policy", "priority")
    done = unmigrated.run("hetero", "simulate", *options, HETERO_AIRFLOW_TRACES=str(traces))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stdout.startswith("Simulated: gavel/tiny on 2 × nvidia/v100\n10 jobs; ")
    assert ["jobs", "10"] in lines
    assert any(line[:2] == ["decision", "p99,"] for line in lines)


def test_a_history_in_which_nothing_ended_is_an_error_that_says_so(installation):
    text = installation.complaint("simulate", "--history", "365", "--cluster", "a100=1,t4=1", "--json")
    assert "The history of the last 365 days can't be used; found no ended task instance." in text
