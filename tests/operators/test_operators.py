import socket
import subprocess

import pytest
import structlog
from airflow.sdk import DAG, task

from hetero_airflow.contract.envelope import ENVELOPE_KEY, add_lease, unpack_request
from hetero_airflow.contract.executor_names import hetero_executor_name
from hetero_airflow.errors import RequestError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.operators import DeviceBashOperator, DevicePythonOperator
from hetero_airflow.operators.mapped import complete_mapped_task
from hetero_airflow.runtime import current_lease
from hetero_airflow.runtime.visible_devices import bound_to_lease
from hetero_airflow.sensors import DeviceAvailableSensor
from hetero_airflow.testing import a_task_lease


@pytest.fixture
def dag():
    with DAG("a_dag", schedule=None) as dag:
        yield dag


def request_of(operator, map_index=-1):
    complete_mapped_task(operator)
    return unpack_request(operator.executor_config, map_index)


def test_the_request_travels_in_executor_config_beside_the_authors_own(dag):
    operator = DevicePythonOperator(
        task_id="t", python_callable=print, device="gpu:2", executor_config={"pod_override": 1}, retries=2
    )
    assert operator.executor_config["pod_override"] == 1
    assert request_of(operator) == DeviceRequest.parse("gpu:2")
    assert operator.retries == 2


def test_the_decorator_takes_what_the_operator_takes(dag):
    @task.device(device={"device": "gpu", "memory": "40GiB.."}, runtime={"torch": ">=2.8"}, retries=3)
    def train(x=1):
        return x

    operator = train().operator
    assert request_of(operator) == DeviceRequest.parse("gpu", quota={"memory": "40GiB.."}, runtime={"torch": ">=2.8"})
    assert operator.retries == 3


@pytest.mark.parametrize("operator", [DeviceBashOperator, DevicePythonOperator, DeviceAvailableSensor])
def test_an_unknown_argument_is_refused_with_the_nearest_one(dag, operator):
    known = {DeviceBashOperator: {"bash_command": "true"}, DevicePythonOperator: {"python_callable": print}}
    with pytest.raises(
        RequestError, match=r"^Task t: priorty='high' .* no such argument of .*Did you mean \"priority\"\?$"
    ):
        operator(task_id="t", device="gpu", priorty="high", **known.get(operator, {}))
    with pytest.raises(TypeError, match="missing keyword argument 'device'"):
        operator(task_id="u", **known.get(operator, {}))


def test_a_mapped_task_gets_its_request_by_the_policy(dag):
    mapped = DeviceBashOperator.partial(task_id="t", device="gpu", driver=">=550").expand(bash_command=["a", "b"])
    assert unpack_request(mapped.executor_config, 0) is None
    assert request_of(mapped, 1) == DeviceRequest.parse("gpu", driver=">=550")


def test_a_mapped_decorated_task_gets_its_request_by_the_policy(dag):
    @task.device(device="npu:2")
    def train(x):
        return x

    train.expand(x=[1, 2, 3])
    assert request_of(dag.get_task("train"), 2) == DeviceRequest.parse("npu:2")


def test_expanding_the_device_gives_each_instance_its_own(dag):
    mapped = DeviceBashOperator.partial(task_id="t").expand(device=["gpu:1", "cpu:2"], bash_command=["a", "b", "c"])
    texts = [str(request_of(mapped, index)) for index in range(6)]
    assert texts == ["1 × gpu"] * 3 + ["2 × cpu"] * 3


def test_the_arguments_of_a_decorated_function_are_its_own_whatever_their_names(dag):
    @task.device(device="gpu")
    def train(labels, priority):
        return labels

    train.expand(labels=[["cat"], ["dog"]], priority=["low", "high"])
    assert [request_of(dag.get_task("train"), index) for index in range(4)] == [DeviceRequest.parse("gpu")] * 4


@pytest.mark.parametrize(
    ("fields", "expanded", "problem"),
    [
        ({"quota": {"memory": "{{ params.m }}"}}, {"bash_command": ["a"]}, "device=None"),
        ({"bash_command": "a"}, {"device": ["gpu"], "priority": ["low"]}, "Expand over whole requests"),
        ({"device": "gpuu"}, {"bash_command": ["a"]}, 'Did you mean "gpu"'),
    ],
    ids=["a template without a device", "two expanded arguments", "a bad device"],
)
def test_a_mapped_task_with_a_bad_request_is_refused_when_the_file_is_parsed(dag, fields, expanded, problem):
    mapped = DeviceBashOperator.partial(task_id="t", **fields).expand(**expanded)
    with pytest.raises(RequestError, match=problem):
        complete_mapped_task(mapped)


def test_default_args_of_the_dag_hold_for_device_tasks(monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor,hetero_airflow.executor.HeteroExecutor")
    default_args = {"pool": "team_a", "executor_config": {"pod_override": 1}, "device": "npu"}
    with DAG("d", schedule=None, default_args=default_args):
        operator = DevicePythonOperator(task_id="t", python_callable=print)
    assert (operator.pool, operator.executor_config["pod_override"]) == ("team_a", 1)
    assert request_of(operator) == DeviceRequest.parse("npu")


def test_a_resumed_task_has_its_lease_bound_too(dag):
    class Resuming(DevicePythonOperator):
        def resume(self, context, event=None):
            return current_lease()

    operator = Resuming(task_id="t", python_callable=print, device="gpu")
    lease = a_task_lease()
    assert operator.resume_execution("resume", {}, {"ti": AnInstance(add_lease(None, lease))}) == lease


def test_expand_kwargs_gives_each_instance_its_own(dag):
    rows = [{"bash_command": "a", "device": "gpu:0.5"}, {"bash_command": "b", "device": "tpu:4"}]
    mapped = DeviceBashOperator.partial(task_id="t").expand_kwargs(rows)
    assert [str(request_of(mapped, index)) for index in range(2)] == ["0.5 of a gpu", "4 × tpu"]


def test_a_device_that_is_known_only_at_run_time_is_refused_when_the_file_is_parsed(dag):
    @task
    def devices():
        return ["gpu"]

    mapped = DeviceBashOperator.partial(task_id="t", bash_command="a").expand(device=devices())
    with pytest.raises(RequestError, match="known only at run time"):
        complete_mapped_task(mapped)


def test_tasks_that_ask_for_no_device_are_left_alone(dag):
    @task
    def plain(x):
        return x

    plain.expand(x=[1])
    mapped = dag.get_task("plain")
    complete_mapped_task(mapped)
    assert mapped.executor_config == {}


@pytest.mark.parametrize(
    "device", ["gpuu", "gpu:0", "gpu:-1", "gpu:nan", "gpu:" + "9" * 19, "x" * 100_000, 5, None, []]
)
def test_a_bad_device_is_refused_when_the_file_is_parsed(dag, device):
    with pytest.raises(RequestError) as caught:
        DevicePythonOperator(task_id="t", python_callable=print, device=device)
    assert "device=" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("configured", "name"),
    [
        ("LocalExecutor", None),
        ("hetero_airflow.executor.HeteroExecutor", "hetero_airflow.executor.HeteroExecutor"),
        ("LocalExecutor, devices:hetero_airflow.executor.HeteroExecutor", "devices"),
        ("hetero_airflow.executor.HeteroExecutor;red=LocalExecutor", "hetero_airflow.executor.HeteroExecutor"),
        ("LocalExecutor;red=hetero_airflow.executor.HeteroExecutor", None),
    ],
)
def test_our_executor_is_found_under_any_name(configured, name):
    assert hetero_executor_name(configured) == name


@pytest.mark.parametrize("configured", ["LocalExecutor,hetero_airflow.executor.HeteroExecutor"])
def test_device_tasks_choose_our_executor_and_pool_by_themselves(monkeypatch, dag, configured):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", configured)
    plain = DevicePythonOperator(task_id="t", python_callable=print, device="gpu")
    assert (plain.executor, plain.pool) == ("hetero_airflow.executor.HeteroExecutor", "hetero_devices")
    mapped = DeviceBashOperator.partial(task_id="m", device="gpu").expand(bash_command=["a"])
    complete_mapped_task(mapped)
    assert (mapped.executor, mapped.pool) == (plain.executor, plain.pool)
    local = DevicePythonOperator(
        task_id="o", python_callable=print, device="gpu", pool="mine", executor="LocalExecutor"
    )
    assert (local.executor, local.pool) == ("LocalExecutor", "mine")


class AnInstance:
    dag_id, task_id, run_id, map_index, max_tries, try_number = "dag", "t", "run", -1, 0, 1

    def __init__(self, carrier=None):
        self.context_carrier = carrier


def test_the_operator_binds_the_lease_where_no_coordinator_did(dag):
    operator = DevicePythonOperator(task_id="t", python_callable=current_lease, device="gpu")
    lease = a_task_lease()
    assert operator.execute({"ti": AnInstance(add_lease(None, lease))}) == lease


def test_a_lease_that_the_coordinator_bound_is_used_as_it_is(dag):
    operator = DevicePythonOperator(task_id="t", python_callable=current_lease, device="gpu")
    with bound_to_lease(a_task_lease(id="from-coordinator")):
        assert operator.execute({"ti": AnInstance()}).id == "from-coordinator"


def test_a_task_that_was_not_placed_runs_and_says_so(dag, caplog):
    operator = DevicePythonOperator(task_id="t", python_callable=lambda: 42, device="gpu")
    with structlog.testing.capture_logs() as logs:
        assert operator.execute({"ti": AnInstance()}) == 42
    assert [log["log_level"] for log in logs if log["event"].startswith("This task has no device lease")] == ["warning"]


@pytest.mark.parametrize(("pool", "is_named"), [("gpus", True), (None, False)])
def test_a_pool_other_than_the_configured_one_is_named_in_the_log(dag, monkeypatch, pool, is_named):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "hetero_airflow.executor.HeteroExecutor")
    dag.default_args = {"pool": pool} if pool else {}
    operator = DevicePythonOperator(task_id="t", python_callable=print, device="gpu")
    with structlog.testing.capture_logs() as logs:
        operator.execute({"ti": AnInstance(add_lease(None, a_task_lease()))})
    assert any(log["event"].startswith("This task is in the pool") for log in logs) is is_named


def test_a_command_sees_its_lease_even_with_an_environment_of_its_own(dag):
    operator = DeviceBashOperator(task_id="t", bash_command="x", device="gpu", env={"ONLY": "this"})
    with bound_to_lease(a_task_lease()):
        env = operator.get_env({})
    assert env["ONLY"] == "this"
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert "PATH" not in env


def test_executor_config_key_is_not_overwritten_by_a_nested_operator(dag):
    operator = DevicePythonOperator(task_id="t", python_callable=print, device="gpu")
    assert list(operator.executor_config) == [ENVELOPE_KEY]


@pytest.mark.parametrize("level", [None, "0"])
def test_a_shell_command_reads_no_bashrc_also_where_no_shell_started_airflow(dag, tmp_path, monkeypatch, level):
    """As under systemd or cron. The input of a task's process is a socket; bash then takes it for a remote shell's."""
    (tmp_path / ".bashrc").write_text("export CUDA_VISIBLE_DEVICES=all PATH=/nowhere\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SHLVL", raising=False)
    if level is not None:
        monkeypatch.setenv("SHLVL", level)
    operator = DeviceBashOperator(task_id="t", device="gpu", bash_command="unused")
    ours, other_end = socket.socketpair()
    with bound_to_lease(a_task_lease(ids=("GPU-7",), indexes=(7,))), ours, other_end:
        command = ["bash", "-c", "echo $CUDA_VISIBLE_DEVICES"]
        done = subprocess.run(command, env=operator.get_env({}), stdin=ours, capture_output=True, text=True)
    assert done.stdout == "GPU-7\n"
