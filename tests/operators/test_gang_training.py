"""Real gangs on Gloo: two torchruns on this host, each in a process of its own, as on two workers."""

import json
import multiprocessing
import os
import signal

import pytest

from hetero_airflow.contract.task_lease import TaskGang
from hetero_airflow.operators import TorchrunOperator
from hetero_airflow.runtime.visible_devices import bound_to_lease
from hetero_airflow.settings import CONTROL_VARIABLE
from hetero_airflow.testing import a_task_lease

WORKERS = 2
STEPS = 8

TRAIN = """
import json, os, pathlib, signal, sys, time
import torch
import torch.distributed as dist
from hetero_airflow.runtime import checkpoint

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size, folder = dist.get_rank(), dist.get_world_size(), pathlib.Path(sys.argv[1])
value = torch.ones(1)
dist.all_reduce(value)
model = torch.nn.Linear(2, 1)
torch.nn.init.zeros_(model.weight)
for step in checkpoint.steps(8, every=1, state={"model": model}):
    if step == 4 and rank == int(sys.argv[2]) and not (folder / "died").exists():
        newest = folder / "store/dag/train/newest.json"
        while not newest.exists() or json.loads(newest.read_text())["entry"]["step"] < 3:  # the first rank's saving
            time.sleep(0.01)
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    loss = model(torch.ones(1, 2) * rank).sum()
    model.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        with torch.no_grad():
            parameter += parameter.grad
    if rank == 0:
        with open(folder / "steps", "a") as file:
            print(json.dumps([step, size, round(model.weight.sum().item(), 3)]), file=file)
(folder / f"worker-{os.environ['GROUP_RANK']}-rank-{rank}").touch()
if rank == 0:
    pathlib.Path(os.environ["HETERO_AIRFLOW_RESULT"]).write_text(json.dumps(size))
dist.destroy_process_group()
"""


class AnInstance:
    """A task instance whose XComs are files that all of them see."""

    dag_id, task_id, run_id, max_tries, try_number = "dag", "train", "run", 0, 1

    def __init__(self, folder, map_index):
        self.folder, self.map_index, self.context_carrier = folder, map_index, None

    def xcom_push(self, key, value):
        draft = self.folder / f"{key}~"
        draft.write_text(json.dumps(value))
        draft.replace(self.folder / f"{key}-{self.map_index}")

    def xcom_pull(self, *, key, map_indexes):
        path = self.folder / f"{key}-{map_indexes}"
        return json.loads(path.read_text()) if path.exists() else None


def a_gang(rank):
    return TaskGang(
        name="dag.train[4-5] (run) #1",
        rank=rank,
        hosts=("here", "here"),
        leader="lease-0",
        first_index=4,
    )


def leased(rank):
    """Within: a lease of CPU cores, as a member of the gang."""
    lease = a_task_lease(
        id=f"lease-{rank}", token=10 + rank, kind="cpu", vendor="intel", model="cpu", ids=("cpu",),
        indexes=(0,), gang=a_gang(rank),
    )  # fmt: skip
    return bound_to_lease(lease)


def work(folder, rank, arguments, answer):
    """What one worker does with its task of the gang."""
    os.setsid()
    control = folder / f"control-{rank}"
    control.mkdir(exist_ok=True)
    os.environ[CONTROL_VARIABLE] = str(control)
    os.environ["TMPDIR"] = str(folder)  # a rank that is killed leaves its folder for checkpoints behind
    operator = TorchrunOperator(
        task_id="train",
        script=str(folder / "train.py"),
        args=[folder, *arguments],
        processes=2,
        device="cpu",
        max_restarts=1,
        checkpoint={"url": (folder / "store").as_uri()},
        node_rank=rank,
    )
    signal.signal(signal.SIGTERM, lambda *_: operator.on_kill())
    with leased(rank):
        answer.put((rank, operator.execute({"ti": AnInstance(folder, 4 + rank)})))


class Workers:
    """Two workers that train together."""

    def __init__(self, folder):
        self.folder = folder
        self.context = multiprocessing.get_context("fork")
        self.answer = self.context.Queue()
        self.processes = []

    def start(self, *arguments, order):
        for rank in order:
            given = (self.folder, rank, arguments, self.answer)
            self.processes.append(self.context.Process(target=work, args=given))
            self.processes[-1].start()

    def answers(self):
        answer_of_rank = dict(self.answer.get(timeout=600) for _ in self.processes)
        for process in self.processes:
            process.join()
        return answer_of_rank

    def steps(self):
        return [json.loads(line) for line in (self.folder / "steps").read_text().splitlines()]


@pytest.fixture
def workers(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    workers = Workers(tmp_path)
    yield workers
    for process in workers.processes:
        process.kill()


@pytest.mark.system
def test_four_ranks_on_two_workers_restart_from_the_last_checkpoint_after_one_dies_and_keep_their_places(workers):
    workers.start(3, order=(1, 0))
    assert workers.answers() == {0: 4, 1: None}
    steps = workers.steps()
    assert [step for step, *_ in steps] == [*range(4), *range(4, STEPS)]
    once = {step: value for step, _, value in steps}
    assert [once[step] for step in range(STEPS)] == sorted(once.values())
    assert sorted(path.name for path in workers.folder.glob("worker-*")) == [
        "worker-0-rank-0", "worker-0-rank-1", "worker-1-rank-2", "worker-1-rank-3"
    ]  # fmt: skip
