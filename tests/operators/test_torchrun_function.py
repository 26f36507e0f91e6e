"""The scripts of ``@task.torchrun``, run by a Python of their own."""

import functools
import json
import subprocess
import sys
import traceback

import pytest
from airflow.sdk import DAG

from hetero_airflow.errors import RequestError
from hetero_airflow.operators import task
from hetero_airflow.operators.torchrun_function import script_of
from tests.operators.test_operators import request_of

OF_THE_FILE = 7


def run(function, tmp_path, *args, rank=0, **kwargs):
    """How the script ends, and what it leaves as the task's result."""
    (tmp_path / "arguments.json").write_text(json.dumps({"args": args, "kwargs": kwargs}))
    (tmp_path / "train.py").write_text(script_of(function, ["/also/here"]))
    environment = {"RANK": str(rank), "HETERO_AIRFLOW_RESULT": str(tmp_path / "result")}
    command = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    result = tmp_path / "result"
    return done, json.loads(result.read_text()) if result.exists() else None


def test_rank_0_leaves_what_the_function_returns(tmp_path):
    @task.torchrun(
        device="gpu:2",
    )
    def train(rate: "Unknown", *more, text: str = "a") -> "Unknown":  # noqa: F821
        import sys

        def inner(x):
            return [x * factor for factor in more]

        note = """
# a line that looks like a comment
   and one with another indentation"""
        return [inner(rate), text, note, "/also/here" in sys.path]

    done, result = run(train.function, tmp_path, 2, 3, 4, text="b", rank=1)
    assert (done.stderr, result) == ("", None)
    done, result = run(train.function, tmp_path, 2, 3, 4, text="b")
    assert (done.stderr, result) == (
        "",
        [[6, 8], "b", "\n# a line that looks like a comment\n   and one with another indentation", True],
    )


def test_a_traceback_has_the_lines_of_the_dag_file(tmp_path):
    def train():
        raise OSError("no data")

    with pytest.raises(OSError, match="no data") as raised:
        train()
    here = traceback.extract_tb(raised.tb)[-1].lineno
    assert f'train.py", line {here}, in train' in run(train, tmp_path)[0].stderr


def test_decorators_below_ours_stay():
    def twice(function):
        @functools.wraps(function)
        def doubled():
            return 2 * function()

        return doubled

    @task.torchrun(device="gpu")
    @twice
    def train():
        return 4

    with pytest.raises(RequestError, match="the name twice of the DAG file"):
        script_of(train.function)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def train():\n    return OF_THE_FILE", "the name OF_THE_FILE of the DAG file"),
        ("def train(rate=OF_THE_FILE):\n    return rate", "the name OF_THE_FILE"),
        ("def train():\n    def inner():\n        return OF_THE_FILE\n    return inner()", "the name OF_THE_FILE"),
        ("async def train():\n    pass", r"no plain function \(AsyncFunctionDef\)"),
        ("train = lambda: 1", r"no plain function \(Assign\)"),
        ("exec('def train(): pass')", "no source"),
    ],
)
def test_a_function_that_the_ranks_can_not_run_is_refused_when_the_file_is_parsed(tmp_path, source, problem):
    path = tmp_path / "dag_file.py"
    path.write_text(source)
    names = {"OF_THE_FILE": OF_THE_FILE}
    exec(compile(source, path, "exec"), names)
    with DAG("a_dag", schedule=None), pytest.raises(RequestError, match=problem):
        task.torchrun(device="gpu:2", task_id="train")(names["train"])()


def test_a_function_has_its_own_name_and_what_it_imports(tmp_path):
    def train(n):
        import math as m

        return 1 if n == 0 else n * train(n - 1) + m.floor(0.5) + sum(x for x in range(0))

    assert run(train, tmp_path, 4)[1] == 24


def test_it_takes_what_the_operator_takes():
    with DAG("a_dag", schedule=None, default_args={"max_restarts": 1}):

        @task.torchrun(device="gpu:4", processes="2:4", retries=2)
        def train(rate):
            return rate

        operator = train(0.1).operator
        mapped = train.override(device="gpu:8", gang=2).expand(rate=[0.1, 0.2]).operator
    assert str(request_of(operator)) == "4 × gpu"
    assert (operator.processes, operator.retries, operator.max_restarts) == ("2:4", 2, 1)
    assert str(request_of(mapped, 1)) == "8 × gpu"
    assert mapped.executor_config["hetero"]["gang"] == "2"


@pytest.mark.parametrize("decorator", [task.device, task.device_bash, task.torchrun])
def test_a_decorator_without_brackets_says_what_to_write(decorator):
    with pytest.raises(RequestError, match=r'Write @task\.\w+\(device="gpu"\)'):
        decorator(print)


def test_arguments_that_are_no_json_are_refused_when_it_runs():
    with DAG("a_dag", schedule=None):

        @task.torchrun(device="gpu")
        def train(when):
            return when

        operator = train(object()).operator
    with pytest.raises(Exception, match=r"a value that is no JSON \(Object of type object"):
        operator.execute({})
