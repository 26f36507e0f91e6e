from argparse import Namespace
from datetime import UTC, datetime

import pytest

from hetero_airflow.cli.simulation.plan import PlanArguments, plan_json, plan_report, read_plan_arguments
from hetero_airflow.errors import HeteroError, StoreUnavailable
from hetero_airflow.model.estimates import Interval
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.simulator.planned_tasks import PlannedTask
from hetero_airflow.simulator.rehearsal import Rehearsal, rehearse
from hetero_airflow.store.snapshot_file import snapshot_text
from hetero_airflow.testing import EPOCH, a_worker

DAG = """
from airflow.sdk import DAG, task, task_group
from datetime import timedelta

with DAG("nightly", params={"size": 1}, dagrun_timeout=timedelta(hours=1)):

    @task(execution_timeout=timedelta(minutes=5))
    def fetch(): ...

    @task.device(device="a100:{{ params.size }}", weight_rule="absolute", priority_weight=7)
    def train(data): ...

    @task.device(device="cpu")
    def score(part): ...

    @task
    def listed(): ...

    trained = train(fetch())
    score.partial().expand(part=[1, 2]) << trained
    score.override(task_id="rescore").partial().expand(part=listed())
"""
GANGS = """
from airflow.sdk import DAG, task
from hetero_airflow.operators.torchrun import TorchrunOperator

with DAG("far"):

    @task
    def listed(): ...

    @task.device(device="cpu", gang=2)
    def score(part): ...

    parts = listed()
    trained = TorchrunOperator.partial(task_id="train", script="train.py", device="gpu:4", gang="2:3")
    trained.expand(node_rank=range(3))
    score.expand(part=["a", "b", "c", "d"])
    score.override(task_id="rescore").expand(part=parts)
"""
SNAPSHOT = Snapshot(1, (a_worker(),))


def read(tmp_path, text: str = DAG, **options) -> PlanArguments:
    path = tmp_path / "dag.py"
    path.write_text(text)
    given = dict.fromkeys(("dag_id", "at", "conf", "snapshot", "cluster", "deadline", "policy")) | {"assume": "10m"}

    def no_database():
        raise StoreUnavailable("a database", found="none", remedy="None is needed")

    saved = tmp_path / "saved.json"
    saved.write_text(snapshot_text(SNAPSHOT, EPOCH))
    args = Namespace(dag_file=str(path), **(given | {"snapshot": str(saved)} | options))
    return read_plan_arguments(args, "priority", datetime.now(UTC), lambda: SNAPSHOT, no_database)


def planned(arguments: PlanArguments) -> tuple[PlannedTask, ...]:
    return arguments.rehearse.args[1]


def test_the_tasks_of_a_file_are_planned_in_their_order(tmp_path):
    options = read(tmp_path, conf='{"size": 2}', at="2026-01-01T00:10", assume="5m")
    gpus, core = DeviceRequest.parse("a100:2"), DeviceRequest.parse("cpu")
    given = options.rehearse.keywords
    assert options.dag_id == "nightly"
    assert (given["starts_in_s"], given["assumed_s"], given["deadline_s"]) == (600.0, 300.0, 3600.0)
    assert {task.id: task for task in planned(options)} == {
        "fetch": PlannedTask("fetch", ("nightly", "fetch"), None, (), 9, None, 300.0),
        "train": PlannedTask("train", ("nightly", "train"), gpus, ("fetch",), 7),
        "score[0]": PlannedTask("score[0]", ("nightly", "score"), core, ("train",)),
        "score[1]": PlannedTask("score[1]", ("nightly", "score"), core, ("train",)),
        "listed": PlannedTask("listed", ("nightly", "listed"), None, (), 2),
        "rescore[0]": PlannedTask("rescore[0]", ("nightly", "rescore"), core, ("listed",), is_count_known=False),
    }


def test_the_ranks_of_gangs_are_planned_as_such_and_one_gang_where_their_number_is_not_known(tmp_path):
    gangs = {
        task.id: (task.gang, task.gang_size, task.least, task.is_count_known)
        for task in planned(read(tmp_path, GANGS))
        if task.gang
    }
    assert gangs == {
        "train[0]": ("far.train[0-2] (planned)", 3, 2, True),
        "train[1]": ("far.train[0-2] (planned)", 3, 2, True),
        "train[2]": ("far.train[0-2] (planned)", 3, 2, True),
        "score[0]": ("far.score[0-1] (planned)", 2, 2, True),
        "score[1]": ("far.score[0-1] (planned)", 2, 2, True),
        "score[2]": ("far.score[2-3] (planned)", 2, 2, True),
        "score[3]": ("far.score[2-3] (planned)", 2, 2, True),
        "rescore[0]": ("far.rescore[0-1] (planned)", 2, 2, False),
        "rescore[1]": ("far.rescore[0-1] (planned)", 2, 2, False),
    }


@pytest.mark.parametrize(
    ("text", "options", "error"),
    [
        ("", {}, "found no DAG. Define one in it."),
        (DAG, {"dag_id": "other"}, "found nightly. Name one of them: --dag-id"),
        (DAG, {"at": "noon"}, "--at 'noon' can't be used; found a text that is not a time."),
        (DAG, {"conf": "[1]"}, "--conf '[1]' can't be used; found a text that is not a JSON object."),
        (DAG, {"conf": '{"size": "many"}'}, "found the quantity 'many'"),
        (DAG, {"snapshot": "/nowhere/at/all.json"}, "found FileNotFoundError."),
        (DAG, {"cluster": "v100=2"}, "--cluster 'v100=2' can't be used; found --snapshot beside it."),
        (
            DAG,
            {"snapshot": None, "cluster": "/nowhere"},
            "--cluster '/nowhere' can't be used; found FileNotFoundError.",
        ),
        (DAG, {"snapshot": None, "cluster": "a\0b"}, "found ValueError."),
        (DAG, {"snapshot": None, "cluster": "v100=none"}, "found 'v100=none'"),
        (DAG, {"assume": "soon"}, "--assume='soon' can't be used; found no duration."),
        (DAG, {"deadline": "-1h"}, "--deadline='-1h' can't be used; found no duration."),
    ],
)
def test_bad_input_is_an_error_that_says_so(tmp_path, text, options, error):
    with pytest.raises(HeteroError) as caught:
        read(tmp_path, text, **options)
    assert error in str(caught.value)


def test_a_cluster_comes_from_a_text_or_a_file_and_needs_no_database(tmp_path):
    path = tmp_path / "cluster.txt"
    path.write_text("a100=2   # the new host\n\np100=2x4\n")
    for cluster in ("a100=2,p100=2x4", str(path)):
        arguments = read(tmp_path, snapshot=None, cluster=cluster, assume="1m")
        workers = [(worker.id, len(worker.devices)) for worker in arguments.rehearse.args[0].workers]
        assert workers == [("a100-0", 3), ("p100-0", 5), ("p100-1", 5)]
        assert arguments.rehearse().problems == ()


HELPER = """
def size():
    return 1 / 0
"""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("\nx = = 3", "dag.py, line 2: SyntaxError: invalid syntax (dag.py, line 2). Fix it there."),
        (
            DAG.replace("a100:{{ params.size }}", "gpu:2:3"),
            "dag.py, line 19: RequestError: Task train: device='gpu:2:3' can't be used; found no device text. "
            'Write it as "gpu:2" or "nvidia/a100:1". Fix it there.',
        ),
        ("import helper_of_a_plan as h\nh.size()", "helper_of_a_plan.py, line 3: ZeroDivisionError: division by zero."),
        ("raise ValueError", "dag.py, line 1: ValueError. Fix it there."),
        ("raise ValueError('a\\nb' + 400 * 'c')", f"dag.py, line 1: ValueError: a b{285 * 'c'}…. Fix it there."),
        (DAG + "    trained >> fetch.override(task_id='f')() >> trained", "dag.py: "),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line_with_the_place(tmp_path, monkeypatch, capfd, text, error):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helper_of_a_plan.py").write_text(HELPER)
    with pytest.raises(HeteroError) as caught:
        read(tmp_path, text)
    assert f"dag.py'; found an import error in {error}" in str(caught.value)
    assert "\n" not in str(caught.value)
    output = capfd.readouterr()
    assert output.out + output.err == ""


def test_an_unknown_policy_is_an_error(tmp_path):
    with pytest.raises(HeteroError, match="best"):
        read(tmp_path, policy="best").rehearse()


def test_durations_of_plain_tasks_are_deciles_and_the_median():
    from hetero_airflow.cli.simulation.task_history import _interval

    assert _interval([5.0]) == Interval(5.0, 5.0, 5.0)
    assert _interval([float(n) for n in range(1, 12)]) == Interval(2.0, 6.0, 10.0)


GANG = "far.train[0-3] (planned)"
WHY = (
    f"count: asked all 4 of gang {GANG}, 2 × gpu each, found room for 3 at the same time, even when all workers are "
    "idle"
)


def a_rehearsal(least: int) -> Rehearsal:
    """A gang of four on workers with room for three."""
    request = DeviceRequest.parse("gpu:2")
    ranks = [
        PlannedTask(f"train[{n}]", ("far", "train"), request, gang=GANG, gang_size=4, least=least) for n in range(4)
    ]
    workers = (a_worker("worker-a"), a_worker("worker-b"), a_worker("worker-c"))
    return rehearse(Snapshot(1, workers), ranks, Fifo(), EPOCH)


def test_each_rank_of_a_gang_has_a_row_and_missing_ranks_have_a_note(render):
    text = render(plan_report(a_rehearsal(least=2), "far", "fifo", "the workers as they are now"), width=240)
    rows = [line.split()[:6] for line in text.splitlines() if line.startswith("train[")]
    assert rows == [[f"train[{n}]", "2", "×", "gpu", f"worker-{name}", "0s"] for n, name in enumerate("abc")]
    assert f"NOTE train[0]: its gang is planned with 3 of 4 ranks: {WHY}" in text.splitlines()
    assert text.endswith("Nothing would go wrong")


def test_each_rank_says_why_its_gang_can_never_run(render):
    text = render(plan_report(a_rehearsal(least=4), "far", "fifo", "the workers as they are now"), width=240)
    misses = [line for line in text.splitlines() if line.startswith("MISS")]
    assert misses == [f"MISS train[{n}]: its gang of 4 can't be placed: {WHY}" for n in range(4)]


def test_notes_are_in_the_json_too():
    text = f"its gang is planned with 3 of 4 ranks: {WHY}"
    assert plan_json(a_rehearsal(least=2), "far", "fifo")["notes"] == [{"id": "train[0]", "text": text}]
