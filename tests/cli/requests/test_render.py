import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from airflow.sdk import DAG, task
from kubernetes import client

from hetero_airflow.cli.requests.render import manifest_text, manifests
from hetero_airflow.cli.simulation.dag_file import read_dag
from hetero_airflow.contract.envelope import ENVELOPE_KEY
from hetero_airflow.errors import RequestError, SettingsError
from hetero_airflow.operators import DeviceBashOperator, DevicePodOperator
from hetero_airflow.operators.mapped import complete_mapped_task
from tests.kubernetes_bodies import check_body, check_pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAG_FILE = """
from airflow.sdk import DAG
from hetero_airflow.contract.envelope import ENVELOPE_KEY
from hetero_airflow.operators import DeviceBashOperator, DevicePodOperator
print("a DAG file may print")
with DAG("shop", schedule=None):
    DevicePodOperator(task_id="train", name="train", namespace="ml", image="i", device=["h100:2", "a100:4"])
    DeviceBashOperator(task_id="shell", bash_command="nvidia-smi", device="nvidia:2")
"""


@pytest.fixture
def dag():
    with DAG("shop", schedule=None, params={"n": 3}) as dag:
        yield dag


def rendered(dag, task_id, map_index=-1, dra=False):
    return manifests(dag, task_id, map_index, dra=dra, now=NOW)


def limits(pod):
    return pod["spec"]["containers"][0]["resources"]["limits"]


def test_a_pod_operator_is_its_own_pod(dag):
    DevicePodOperator(task_id="train", name="n", namespace="ml", image="i", device="nvidia:{{ params.n }}")
    (pod,) = rendered(dag, "train")
    check_pod(pod)
    assert (limits(pod), pod["metadata"]["namespace"]) == ({"nvidia.com/gpu": "3"}, "ml")
    assert "securityContext" in pod["spec"]["containers"][0]


def test_a_claim_is_rendered_where_one_is_wanted(dag):
    DevicePodOperator(task_id="train", name="n", namespace="ml", image="i", device=["h100", "a100"])
    claim, pod = rendered(dag, "train", dra=True)
    check_body(claim, "V1ResourceClaimTemplate")
    check_pod(pod)
    assert claim["metadata"]["name"] == pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    assert len(rendered(dag, "train")) == 1


def test_any_device_task_is_the_pod_of_its_executor(dag):
    override = client.V1Pod(spec=client.V1PodSpec(containers=[client.V1Container(name="base", image="own")]))
    DeviceBashOperator(
        task_id="shell",
        bash_command="a",
        device="nvidia:2",
        quota={"cpus": 4},
        executor_config={"pod_override": override},
    )
    (pod,) = rendered(dag, "shell")
    check_pod(pod)
    assert limits(pod) == {"nvidia.com/gpu": "2", "cpu": "4"}
    assert pod["spec"]["containers"][0]["image"] == "own"
    assert pod["metadata"]["labels"]["dag_id"] == "shop"
    claim, by_claim = rendered(dag, "shell", dra=True)
    check_pod(by_claim)
    assert claim["metadata"]["namespace"] == by_claim["metadata"]["namespace"]


def test_each_instance_of_a_mapped_task_has_its_own(dag):
    DevicePodOperator.partial(task_id="pods", name="n", namespace="ml", image="i").expand(device=["nvidia", "nvidia:2"])
    tasks = DeviceBashOperator.partial(task_id="tasks", bash_command="a").expand(device=["nvidia", "nvidia:4"])
    complete_mapped_task(tasks)
    assert [limits(rendered(dag, "pods", index)[-1]) for index in (0, 1)] == [
        {"nvidia.com/gpu": "1"},
        {"nvidia.com/gpu": "2"},
    ]
    assert limits(rendered(dag, "tasks", 1)[0]) == {"nvidia.com/gpu": "4"}
    with pytest.raises(SettingsError, match="--map-index 0"):
        rendered(dag, "pods")


@pytest.mark.parametrize("dra", [False, True])
def test_the_retraining_example_becomes_pods_as_it_is(dra):
    retrain = read_dag(Path(__file__).parents[3] / "dags" / "retrain_digits.py", None)
    asking = [task for task in retrain.tasks if ENVELOPE_KEY in (task.executor_config or {})]
    made = {task.task_id: rendered(retrain, task.task_id, 0 if task.is_mapped else -1, dra=dra) for task in asking}
    assert {"prepare_training", "train", "evaluate"} <= made.keys()
    for *claims, pod in made.values():
        check_pod(pod)
        for claim in claims:
            check_body(claim, "V1ResourceClaimTemplate")
    assert limits(made["prepare_training"][-1]) == {"cpu": "1"}
    assert len(made["train"]) == (2 if dra else 1)


def test_a_task_that_cannot_be_rendered_is_an_error(dag):
    @task
    def plain(): ...

    plain()
    DevicePodOperator(task_id="late", name="n", namespace="ml", image="i", device="{{ ti.xcom_pull('a') }}")
    DeviceBashOperator(task_id="xilinx", bash_command="a", device="u250")
    with pytest.raises(SettingsError, match="no device request"):
        rendered(dag, "plain")
    with pytest.raises(SettingsError, match=r"no such task\. Name one of late, plain, xilinx"):
        rendered(dag, "train")
    with pytest.raises(SettingsError, match="known only at run time"):
        rendered(dag, "late")
    with pytest.raises(RequestError, match="kubernetes_resources"):
        rendered(dag, "xilinx")


def test_the_text_is_read_as_an_equal_request(dag):
    DevicePodOperator(
        task_id="train", name="n", namespace="ml", image="i", device=["h100", "a100"], labels={"a": "é\x1b"}
    )
    made = rendered(dag, "train", dra=True)
    as_yaml, as_json = manifest_text(made, "yaml"), manifest_text(made, "json")
    assert list(yaml.safe_load_all(as_yaml)) == made
    assert json.loads(as_json) == {"apiVersion": "v1", "kind": "List", "items": made}
    assert json.loads(manifest_text(made[1:], "json")) == made[1]
    for text in (as_yaml, as_json):
        assert text.isascii()
        assert text.replace("\n", "").isprintable()


def test_the_command_prints_what_kubectl_takes(installation):
    folder = installation.home / "dags"
    folder.mkdir(exist_ok=True)
    (folder / "shop.py").write_text(DAG_FILE)
    done = installation.run("hetero", "render", "shop", "train", "--dra", "-o", "json")
    assert done.returncode == 0, done.stderr
    items = json.loads(done.stdout)["items"]
    assert [item["kind"] for item in items] == ["ResourceClaimTemplate", "Pod"]
    check_body(items[0], "V1ResourceClaimTemplate")
    check_pod(items[1])
    shell = installation.run("hetero", "render", "shop", "shell")
    (pod,) = yaml.safe_load_all(shell.stdout)
    check_pod(pod)
    assert limits(pod) == {"nvidia.com/gpu": "2"}
    assert "no DAG with this id" in installation.complaint("render", "nowhere", "shell")
