"""Real ranks with Gloo. They die, get notices, and fail through errors of their own."""

import json
import os
import signal
import threading
import time
from contextlib import suppress

import psutil
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException

from hetero_airflow.errors import RequestError
from hetero_airflow.operators import TorchrunOperator
from hetero_airflow.operators.rank_group import RankGroup, RanksFailed, failure_of_ranks
from hetero_airflow.operators.retry_policy import DeviceRetryPolicy
from hetero_airflow.operators.torchrun import without_device
from hetero_airflow.recovery.classification import classify
from hetero_airflow.recovery.failure import FailureClass
from hetero_airflow.runtime.visible_devices import bound_to_lease
from hetero_airflow.settings import CONTROL_VARIABLE
from hetero_airflow.testing import a_task_lease
from tests.operators.test_operators import AnInstance

STEPS = 12

TRAIN = """
import json, os, pathlib, signal, sys, time
import torch
import torch.distributed as dist
from hetero_airflow.runtime import checkpoint

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, folder, result = dist.get_rank(), pathlib.Path(sys.argv[1]), pathlib.Path(os.environ["HETERO_AIRFLOW_RESULT"])
at_step, what = int(sys.argv[2]), sys.argv[3]
torch.manual_seed(7)
model = torch.nn.Linear(4, 1)
momentum = torch.nn.Linear(4, 1)  # by hand: the first step of torch's optimizers imports its compiler for two seconds
for velocity in momentum.parameters():
    torch.nn.init.zeros_(velocity)
data = torch.arange(96, dtype=torch.float32).reshape(24, 4).sin()
state = {"model": model, "momentum": momentum}
done = folder / "done"  # seen by all ranks at a step, or by none
print("hello from", rank, "of", dist.get_world_size())
for step in checkpoint.steps(12, every=2, state=state):
    mine = data[rank :: dist.get_world_size()]
    loss = (model(mine) - 1).square().sum() / len(data)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter, velocity in zip(model.parameters(), momentum.parameters(), strict=True):
            dist.all_reduce(parameter.grad)
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.sub_(velocity, alpha=0.1)
    dist.all_reduce(loss)
    if rank == 0:
        with open(folder / "losses", "a") as file:
            print(json.dumps([step, loss.item(), dist.get_world_size()]), file=file)
        result.write_text(json.dumps({"loss": round(loss.item(), 6)}))  # a start after the last step has no loss
    if step != at_step or done.exists():
        continue
    checkpoint.wait()
    dist.barrier()
    if rank == dist.get_world_size() - 1:
        done.touch()
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "notice":
            pathlib.Path(os.environ["HETERO_AIRFLOW_CONTROL"], "notice").touch()
    dist.barrier()
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs a script in ranks, with checkpoints and a control folder; what the task returned."""
    for name, variable in (("control", CONTROL_VARIABLE), ("temporary", "TMPDIR")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))

    def run(processes, *args, script=TRAIN, **arguments):
        path = tmp_path / "script.py"
        path.write_text(script)
        operator = TorchrunOperator(
            task_id="train",
            script=str(path),
            args=[tmp_path, *args],
            processes=processes,
            device="cpu",
            checkpoint={"url": (tmp_path / "store").as_uri()},
            **arguments,
        )
        return operator.execute({"ti": AnInstance()})

    yield run
    assert list((tmp_path / "temporary").glob("torchelastic*")) == []


def losses(folder):
    return [json.loads(line) for line in (folder / "losses").read_text().splitlines()]


@pytest.fixture(autouse=True)
def left_behind(tmp_path, monkeypatch):
    """Lists the processes that a test has started and that still run."""
    monkeypatch.setenv("STARTED_BY", str(tmp_path))

    def listed():
        command_lines = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_ours = process.environ().get("STARTED_BY") == str(tmp_path)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    command_lines.append(process.cmdline())
        return command_lines

    yield listed
    assert listed() == []


@pytest.mark.system
def test_a_killed_rank_starts_again_from_the_last_checkpoint_and_the_task_goes_on(train, tmp_path, capsys):
    result = train(2, 6, "die")
    steps = losses(tmp_path)
    assert [step for step, *_ in steps] == [*range(7), *range(6, STEPS)]
    assert steps[6] == steps[7]  # the step that was lost, done again, to the bit
    assert result == {"loss": round(steps[-1][1], 6)}
    assert "[rank 1] hello from 1 of 2" in capsys.readouterr().out


@pytest.mark.system
def test_ranks_save_at_a_notice_and_resume_with_another_number_of_ranks(train, tmp_path):
    for processes, at_step in ((1, 5), (2, 8)):
        with pytest.raises(AirflowRescheduleException):
            train(processes, at_step, "notice")
        (tmp_path / "done").unlink()
        (tmp_path / "control" / "notice").unlink()
    train(1, -1, "")
    assert [(step, size) for step, _, size in losses(tmp_path)] == [
        *((step, 1) for step in range(6)),
        *((step, 2) for step in range(6, 9)),
        *((step, 1) for step in range(9, STEPS)),
    ]


LEAVES_THE_GROUP_OPEN = """
import atexit, os, pathlib, sys
import torch.distributed as dist
dist.init_process_group("gloo")
left = pathlib.Path(sys.argv[1], "left-" + os.environ["RANK"])
atexit.register(lambda: left.write_text(str(not dist.is_initialized())))
"""


@pytest.mark.system
def test_a_rank_that_ends_well_leaves_the_process_group_before_gloo_can_abort_it(train, tmp_path):
    train(2, script=LEAVES_THE_GROUP_OPEN)
    assert [(tmp_path / f"left-{rank}").read_text() for rank in (0, 1)] == ["True", "True"]


WRONG = """
import json, os, pathlib, sys, time
pathlib.Path(sys.argv[1], "started-" + os.environ["RANK"]).touch()
if os.environ["RANK"] == "1":
    while not pathlib.Path(sys.argv[1], "started-0").exists():
        time.sleep(0.01)
    raise KeyError("no such label")
time.sleep(600)
"""


@pytest.mark.system
def test_a_mistake_in_the_script_ends_the_run_at_once_and_shows_its_traceback(train, tmp_path, capsys):
    with pytest.raises(RanksFailed) as caught:
        train(2, script=WRONG, max_restarts=1000)
    assert caught.value.rank == 1
    assert classify(caught.value.evidence).failure_class is FailureClass.CODE_ERROR
    assert DeviceRetryPolicy().evaluate(caught.value, 1, 3).action.value == "retry"
    assert 'raise KeyError("no such label")' in str(caught.value)
    assert str(caught.value).endswith("KeyError: 'no such label'")
    assert "rank_process.py" not in str(caught.value)
    assert capsys.readouterr().out.count("[rank 1] Traceback") < 100, "torchrun may be faster than we some times"


OVERTAKEN = """
import os, pathlib, sys
from hetero_airflow.errors import FencedOut
with open(pathlib.Path(sys.argv[1], "starts"), "a") as file:
    print(os.environ["WORLD_SIZE"], file=file)
raise FencedOut("a checkpoint with token 1", found="a run with token 2", remedy="End this process")
"""


@pytest.mark.system
def test_a_run_that_another_one_has_overtaken_is_not_started_again(train, tmp_path):
    with pytest.raises(AirflowRescheduleException):
        train("1:2", script=OVERTAKEN, max_restarts=3)
    starts = (tmp_path / "starts").read_text().split()
    assert set(starts) == {"2"}
    assert len(starts) < 2 * (3 + 1), "torchrun may be faster than we once, but not each time"


WRONG_ONCE = """
import os, pathlib, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    raise KeyError("no such label")
time.sleep(600)
"""


class Silent:
    """A log without a reader."""

    def info(self, *_):
        pass


@pytest.mark.system
def test_a_mistake_that_is_seen_when_all_have_started_again_still_counts(tmp_path):
    (tmp_path / "script.py").write_text(WRONG_ONCE)

    def is_hopeless(end):
        while len(list(group.folder.glob("pid-1-*"))) < 2:  # torchrun looks more often than we do
            time.sleep(0.02)
        return True

    with RankGroup([str(tmp_path / "script.py")], 2, 3, os.environ, Silent()) as group:
        code = group.run(is_hopeless)
        assert [(end.rank, end.restart) for end in group.ends()] == [(1, 0)]
        error = failure_of_ranks(group, code, ["script.py"], 2, None)
    assert (error.rank, classify(error.evidence).failure_class) == (1, FailureClass.CODE_ERROR)


DIES_OF_COMPANY = """
import json, os, pathlib, signal, sys
with open(pathlib.Path(sys.argv[1], "starts-" + os.environ["RANK"]), "a") as file:
    print(os.environ["WORLD_SIZE"], os.environ["OWN"], file=file)
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.system
def test_where_torchrun_gives_up_for_no_fault_of_the_script_fewer_processes_go_on(train, tmp_path):
    assert train("1:2", script=DIES_OF_COMPANY, max_restarts=1, env={"OWN": "mine"}) is None
    starts = [(tmp_path / f"starts-{rank}").read_text().split("\n")[:-1] for rank in (0, 1)]
    assert starts[1] == ["2 mine", "2 mine"]
    assert starts[0][-1] == "1 mine"


@pytest.mark.system
def test_with_as_few_processes_as_may_be_it_is_requeued(train, tmp_path):
    with pytest.raises(AirflowRescheduleException):
        train(2, script=DIES_OF_COMPANY, max_restarts=0, env={"OWN": "mine"})


OUTLIVES = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[1], "ready").touch()
time.sleep(600)
"""


@pytest.mark.system
def test_killed_it_leaves_no_process_behind_though_they_ignore_the_signal(tmp_path, left_behind):
    script = tmp_path / "script.py"
    script.write_text(OUTLIVES)
    operator = TorchrunOperator(task_id="t", script=str(script), args=[tmp_path], device="cpu")
    running = []

    def stop_when_ready():
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
        while len(running) < 3:  # of one that has just begun, the environment can't be read yet
            running[:] = left_behind()
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, lambda *_: operator.on_kill())
    try:
        thread = threading.Thread(target=stop_when_ready)
        thread.start()
        with pytest.raises(AirflowRescheduleException):  # as a worker that is lost
            operator.execute({"ti": AnInstance()})
        thread.join()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert len(running) == 3, "torchrun, the rank, and its child in a session of its own"


@pytest.mark.parametrize(
    ("arguments", "field", "problem"),
    [
        ({"script": "a.py", "module": "a"}, "script", "also the module 'a'"),
        ({}, "script", "neither"),
        ({"script": "a.py", "processes": "0:2"}, "processes", "outside 1 to"),
        ({"script": "a.py", "processes": "4:2"}, "processes", "ends before it begins"),
        ({"script": "a.py", "processes": "many"}, "processes", "no number"),
        ({"script": "a.py", "processes": True}, "processes", "no number"),
        ({"script": "a.py", "processes": 10**9}, "processes", "outside 1 to"),
        ({"script": "a.py", "args": "--lr 1"}, "args", "a single text"),
        ({"script": "a.py", "max_restarts": -1}, "max_restarts", "no number of restarts"),
        ({"script": "a.py", "compress_gradients": "zip"}, "compress_gradients", "no such compression"),
    ],
)
def test_bad_arguments_are_refused_when_the_file_is_parsed(arguments, field, problem):
    with pytest.raises(RequestError, match=problem) as caught:
        TorchrunOperator(task_id="t", device="gpu", **arguments)
    assert caught.value.field == field


def test_whether_the_script_exists_is_asked_beside_the_dag_file_when_it_runs(tmp_path):
    with DAG("a_dag", schedule=None) as dag:
        operator = TorchrunOperator(task_id="t", script="no/such.py", device="cpu")
    dag.fileloc = str(tmp_path / "dag.py")
    with pytest.raises(AirflowFailException, match="found no such file"):
        operator.execute({"ti": AnInstance()})


@pytest.mark.parametrize(
    ("processes", "fields", "expected"),
    [
        (None, {}, (2, 2)),
        ("1:4", {}, (1, 2)),
        ("1:1", {}, (1, 1)),
        (None, {"vendor": "intel", "kind": "cpu", "cores": (0, 1, 2)}, (1, 1)),
        ("2:4", {"vendor": "intel", "kind": "cpu", "cores": (0, 1, 2)}, (2, 4)),
    ],
)
def test_there_are_as_many_processes_as_devices_and_on_a_cpu_as_many_as_asked(processes, fields, expected):
    operator = TorchrunOperator(task_id="t", module="m", processes=processes, device="gpu:2")
    assert operator._counts(a_task_lease(**fields)) == expected


def test_more_processes_than_devices_are_refused():
    operator = TorchrunOperator(task_id="t", module="m", processes="4:8", device="gpu:4")
    with bound_to_lease(a_task_lease()), pytest.raises(AirflowFailException, match="found 2 leased devices"):
        operator.execute({"ti": AnInstance()})


def test_a_device_that_is_left_out_is_hidden_from_the_ranks():
    lease = without_device(a_task_lease(ids=("a", "b", "c"), indexes=(1, 2, 3)), 1)
    assert (lease.ids, lease.indexes, lease.id) == (("a", "c"), (1, 3), "lease-1")
    operator = TorchrunOperator(task_id="t", module="m", device="gpu:3", env={"CUDA_VISIBLE_DEVICES": "all"})
    assert operator._environment(lease, 2)["CUDA_VISIBLE_DEVICES"] == "a,c"


def test_the_cores_of_a_lease_are_shared_out_among_the_ranks():
    lease = a_task_lease(vendor="intel", kind="cpu", cores=(0, 1, 2, 3))
    operator = TorchrunOperator(task_id="t", module="m", device="cpu:4")
    assert operator._environment(lease, 2)["OMP_NUM_THREADS"] == "2"
