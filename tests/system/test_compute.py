"""The DAGs of docs/compute.md in a real Airflow."""

import gzip
import json
import re
from urllib.parse import unquote

import httpx
import pytest
from local_airflow import LocalAirflow

from tests.doc_dags import write_dags_of
from tests.system.conftest import QUICK

pytestmark = pytest.mark.system

COMPILED = """
from airflow.sdk import dag
from hetero_airflow.operators import task

@dag(schedule=None)
def compiled():
    @task.device(device="cpu:1")
    def train():
        import torch
        from hetero_airflow.runtime import compile

        class Chain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(64))

            def forward(self, rows):
                for _ in range(60):
                    rows = torch.tanh(rows * self.weight) + 0.1
                return rows

        torch.set_num_threads(1)
        compute = compile(Chain(), expected_steps=10**9, on_cpu=True)
        for _ in range(40):
            compute(torch.ones(64, 64)).sum().backward()

    train()

compiled()
"""
"""Compiled in the second run: it is to have as many steps as take hours."""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory):
    home = tmp_path_factory.mktemp("airflow")
    write_dags_of("docs/compute.md", home / "dags")
    (home / "dags/compiled.py").write_text(COMPILED)
    own = f"{home}/torchinductor_root"  # as torch names its folder; where another one is set, nothing is kept
    settings = {**QUICK, "TORCHINDUCTOR_CACHE_DIR": own}
    with LocalAirflow(home, home / "dags", simulated="nvidia/h100-80gb:1", settings=settings) as made:
        yield made


@pytest.fixture
def log_of(airflow):
    """What the task of a new run of a DAG logs."""

    def logged(dag_id):
        run_id = airflow.trigger(dag_id)
        assert airflow.wait_for_run(dag_id, run_id) == "success"
        return airflow.log_text(dag_id, run_id, "train")

    return logged


def test_a_task_on_a_simulated_device_trains_in_the_precision_of_the_cpu(log_of):
    log = log_of("train_in_mixed_precision")
    assert "Training in BF16 on CPU." in log or "Training in FP32 on CPU." in log


def test_the_size_of_a_batch_is_kept_for_the_next_run(log_of):
    found = "Batches of 2048 rows, 1 for an optimizer step of 2048; trial steps: "
    first, second = log_of("train_in_large_batches"), log_of("train_in_large_batches")
    assert found in first
    assert f"{found}1;" not in first
    assert f"{found}1;" in second


def test_a_model_on_the_cpu_is_not_compiled(log_of):
    assert "The model is not compiled: on a CPU that takes on_cpu=True." in log_of("train_compiled")


def test_what_a_run_has_compiled_the_next_one_starts_with(log_of):
    assert "The model is not compiled: it is measured without that first." in log_of("compiled")
    assert "The model is compiled: to measure it." in log_of("compiled")
    assert "The model is compiled by an earlier run: " in log_of("compiled")


def test_the_profile_of_a_task_is_downloaded(airflow, log_of):
    log = log_of("train_profiled")
    (key,) = re.findall(r"Steps 11 to 20 are profiled: (\S+)\.json\.gz\. The task's tab has a link", log)
    run_id = unquote(key.split("/")[-3])
    query = {"run_id": run_id, "task_id": "train"}
    path = f"{airflow.url}/hetero/page/profile/train_profiled"
    assert httpx.get(path, params=query).status_code == 401
    answer = airflow._client.get(path, params=query)
    answer.raise_for_status()
    names = {event.get("name") for event in json.loads(gzip.decompress(answer.content))["traceEvents"]}
    assert "aten::linear" in names


def test_ranks_send_compressed_gradients(log_of):
    assert "Gradients are sent compressed (powersgd)." in log_of("train_in_ranks")
