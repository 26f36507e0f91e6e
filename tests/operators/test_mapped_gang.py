"""Which gangs a DAG file may request, and the errors for others."""

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task
from airflow.serialization.serialized_objects import DagSerialization

from hetero_airflow.contract.envelope import ENVELOPE_KEY, unpack_gang, unpack_request
from hetero_airflow.errors import RequestError
from hetero_airflow.model.gang import GangSize
from hetero_airflow.operators import DeviceBashOperator, TorchrunOperator
from hetero_airflow.operators.mapped import complete_mapped_task
from hetero_airflow.task_policy import task_policy


@pytest.fixture
def dag():
    with DAG("a_dag", schedule=None) as dag:
        yield dag


def trained(**arguments):
    return TorchrunOperator.partial(task_id="train", script="train.py", device="gpu:4", **arguments)


def packed(operator):
    complete_mapped_task(operator)
    return operator.partial_kwargs["executor_config"]


def test_a_training_that_is_expanded_over_its_ranks_is_one_gang(dag):
    config = packed(trained().expand(node_rank=range(4)))
    assert unpack_gang(config).max_members == 4
    assert str(unpack_request(config, 3)) == "4 × gpu"


def test_a_dag_file_with_ranks_as_a_range_can_be_serialized(dag):
    packed(trained().expand(node_rank=range(4)))
    encoded = DagSerialization.to_dict(dag)["dag"]["tasks"][0]
    assert "train" in str(encoded)
    assert "[0, 1, 2, 3]" in str(encoded)


def test_any_mapped_device_task_can_be_of_gangs(dag):
    @task.device(device="gpu", gang=2)
    def work(x): ...

    assert unpack_gang(packed(work.expand(x=[1, 2, 3, 4]).operator)).max_members == 2
    command = DeviceBashOperator.partial(task_id="bash", device="gpu", gang=3).expand(bash_command=["a", "b", "c"])
    assert unpack_gang(packed(command)).max_members == 3


def test_each_value_before_the_ranks_has_a_gang_of_its_own(dag):
    config = packed(trained().expand(env=[{"LR": "1"}, {"LR": "2"}], node_rank=range(4)))
    assert unpack_gang(config).max_members == 4


def test_a_gang_may_go_on_with_fewer(dag):
    config = packed(trained(gang="2:4@10m").expand(node_rank=range(4)))
    assert unpack_gang(config) == GangSize(4, 2, 600.0)


def test_a_mapped_task_that_says_nothing_is_of_no_gang(dag):
    config = packed(DeviceBashOperator.partial(task_id="b", device="gpu").expand(bash_command=["a", "b"]))
    assert "gang" not in config[ENVELOPE_KEY]
    assert unpack_gang(config) == unpack_gang(None) == unpack_gang({}) == GangSize()


@pytest.mark.parametrize(
    ("arguments", "expanded", "field", "problem"),
    [
        ({"gang": 4}, {"args": [["a"], ["b"], ["c"]]}, "gang", "3 instances"),
        ({"gang": 0}, {"args": [["a"]]}, "gang", "no range of sizes from 1 up"),
        ({"gang": "many"}, {"args": [["a"]]}, "gang", "no number of tasks"),
        ({"gang": True}, {"args": [["a"]]}, "gang", "no number of tasks"),
        ({"gang": 2000}, {"args": [["a"]]}, "gang", "a size above the limit of 1024"),
        ({"gang": "4:2"}, {"args": [["a"]]}, "gang", "no range of sizes from 1 up"),
        ({"gang": "4@10m"}, {"args": [["a"]]}, "gang", "a wait, but no smaller size"),
        ({"gang": "2:4@soon"}, {"args": [["a"]]}, "gang", "no duration"),
        ({"gang": "2:3"}, {"node_rank": range(4)}, "gang", "node_rank with 4 values"),
        ({"gang": 2}, {"node_rank": range(4)}, "gang", "node_rank with 4 values"),
        ({}, {"node_rank": [0, 2]}, "node_rank", "no ranks 0, 1"),
        ({}, {"node_rank": []}, "node_rank", "no ranks 0, 1"),
        ({}, {"node_rank": range(2000)}, "node_rank", "no ranks 0, 1"),
        ({}, {"node_rank": range(2), "args": [["a"]]}, "node_rank", "args after it"),
        ({}, {"gang": [2, 2]}, "gang", "a gang for each instance"),
        ({"max_active_tis_per_dag": 2}, {"node_rank": range(4)}, "gang", "max_active_tis_per_dag=2"),
        ({"max_active_tis_per_dagrun": 3}, {"node_rank": range(4)}, "gang", "max_active_tis_per_dagrun=3"),
        ({}, {"node_rank": range(64)}, "gang", "max_active_tasks=16"),
    ],
)
def test_a_gang_that_could_never_be_whole_is_refused_when_the_file_is_parsed(dag, arguments, expanded, field, problem):
    operator = trained(**arguments).expand(**expanded)
    with pytest.raises(RequestError, match=problem) as caught:
        complete_mapped_task(operator)
    assert caught.value.field == field


def test_ranks_that_are_known_only_at_run_time_are_refused(dag):
    @task
    def ranks():
        return [0, 1]

    with pytest.raises(RequestError, match="known only at run time"):
        complete_mapped_task(trained().expand(node_rank=ranks()))


def test_a_gang_over_values_that_are_known_only_at_run_time_is_taken(dag):
    @task
    def shards():
        return [1, 2]

    assert unpack_gang(packed(trained(gang=2).expand(args=shards()))).max_members == 2


def test_ranks_among_the_arguments_of_single_instances_are_refused(dag):
    with pytest.raises(RequestError, match="arguments for each instance"):
        complete_mapped_task(trained().expand_kwargs([{"node_rank": 0}, {"node_rank": 1}]))


@pytest.mark.parametrize("arguments", [{"gang": 4}, {"node_rank": 0}])
def test_a_task_that_is_not_mapped_can_be_no_gang(dag, arguments):
    operator = TorchrunOperator(task_id="train", script="train.py", device="gpu", **arguments)
    with pytest.raises(RequestError, match="not mapped") as caught:
        task_policy(operator)
    assert caught.value.field == next(iter(arguments))


def test_a_plain_task_passes():
    task_policy(DeviceBashOperator(task_id="b", device="gpu", bash_command="true"))


def test_each_instance_is_made_with_its_rank_and_knows_its_gang(dag):
    operator = trained(gang="2:4").expand(node_rank=range(4))
    complete_mapped_task(operator)
    instance = operator.unmap({"node_rank": 3})
    assert (instance.node_rank, instance.gang) == (3, GangSize(4, 2))


OURS = "hetero_airflow.executor.HeteroExecutor"


@pytest.mark.parametrize(
    ("core_executor", "arguments", "is_refused"),
    [
        (OURS, {}, True),
        (f"LocalExecutor,devices:{OURS}", {"executor": "devices"}, True),
        (f"LocalExecutor,devices:{OURS}", {}, False),
        (f"LocalExecutor;team={OURS}", {}, False),
        ("LocalExecutor", {}, False),
    ],
)
@pytest.mark.parametrize("is_mapped", [True, False])
def test_a_device_in_the_executor_config_of_a_plain_operator_is_refused(
    dag, monkeypatch, core_executor, arguments, is_refused, is_mapped
):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", core_executor)
    arguments = {"task_id": "train", "executor_config": {"device": "gpu:2"}} | arguments
    plain = BashOperator(bash_command="true", **arguments)
    if is_mapped:
        plain = BashOperator.partial(**arguments | {"task_id": "trains"}).expand(bash_command=["true"])
    if is_refused:
        remedy = r"found BashOperator, which .* Use DeviceBashOperator\(device=\.\.\.\) from"
        with pytest.raises(RequestError, match=remedy):
            task_policy(plain)
    else:
        task_policy(plain)


def test_the_executor_config_of_a_device_task_is_its_authors(dag, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", OURS)
    arguments = {"device": "gpu", "executor_config": {"device": "gpu:2"}}
    task_policy(DeviceBashOperator(task_id="train", bash_command="true", **arguments))
    task_policy(DeviceBashOperator.partial(task_id="trains", **arguments).expand(bash_command=["true"]))


def test_the_refusal_for_an_operator_of_somebody_else_names_the_class_to_write(dag, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", OURS)
    with pytest.raises(RequestError, match=r"class MyEmptyOperator\(DeviceOperator, EmptyOperator\)"):
        task_policy(EmptyOperator(task_id="empty", executor_config={"device": "gpu"}))
