"""Local runs: real `dag.test()` runs and Airflow commands in processes of their own, on simulated devices."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.migrated_database import copy_migrated_database

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
GPUS = "nvidia/h100-80gb:2"

HEADER = """
import os, time
from datetime import timedelta
from pathlib import Path
from airflow.sdk import dag, task
from hetero_airflow.operators import DeviceBashOperator, DevicePythonOperator, TorchrunOperator
from hetero_airflow.runtime import current_lease
from hetero_airflow.sensors import CheckpointSensor, DeviceAvailableSensor

@dag(schedule=None, params={"share": 0.5})
def %s():
"""
RUN_ALL = """
import runpy, sys
for path in sys.argv[1:]:
    print("FILE", path, flush=True)
    runpy.run_path(path, run_name="__main__")
print("FILE", flush=True)
"""


class LocalRuns:
    """Runs DAG files as a user does, in a home without an executor, and with lease files of their own."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
            # Tests write the same DAG one after the other; Airflow skips the second write within 30 s.
            "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
            "TMPDIR": str(folder / "tmp"),
            "HETERO_AIRFLOW_SIMULATED_DEVICES": GPUS,
        }
        (folder / "tmp").mkdir()

    def lease_files(self) -> list[Path]:
        """The files of leases that are there."""
        return list((self.folder / "tmp").glob("*/*.json"))

    def write(self, body: str, dag_id: str = "local") -> Path:
        path = self.folder / f"{dag_id}_dag.py"
        tail = f"the_dag = {dag_id}()\nif __name__ == '__main__':\n    print('STATE', the_dag.test().state)"
        path.write_text(f"{HEADER % dag_id}{indent(dedent(body), '    ')}\n\n{tail}\n")
        return path

    def start(self, *command: str, **variables: str) -> subprocess.Popen:
        return subprocess.Popen(
            command, env=self.environment | variables, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *bodies: str, **variables: str) -> list[str]:
        """The outputs of `dag.test()` on DAGs with these tasks, one after the other in one process."""
        paths = [str(self.write(body, f"local{number}")) for number, body in enumerate(bodies)]
        output = self.start(sys.executable, "-c", RUN_ALL, *paths, **variables).communicate(timeout=600)[0]
        outputs = re.split(r"(?m)^FILE.*\n", output)[1:-1]
        assert len(outputs) == len(bodies), output
        return outputs


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    copy_migrated_database(home / "airflow.db")
    return home


@pytest.fixture
def local(home, tmp_path):
    return LocalRuns(home, tmp_path)


ERRORS = """
class NoData(Exception):
    def __init__(self, *, reason):
        super().__init__("no data: " + reason)
        self.reason = reason
"""

TASKS = """
@task.device(device=["a100:2", "gpu", "cpu:8"], priority="high")
def train(size, ti=None):
    ti.xcom_push("extra", 7)
    print("LEASE", current_lease(), os.environ["CUDA_VISIBLE_DEVICES"])
    return {"pid": os.getpid(), "size": size}

@task
def check(result, ti=None):
    print("CHILD", result["pid"] != os.getpid(), result["size"], ti.xcom_pull("train", key="extra"))

check(train(3))

@task.device(device="gpu:{{ params.share }}")
def half():
    print("HALF", current_lease())

half()

@task.device(device="cpu")
def stop():
    from airflow.sdk.exceptions import AirflowSkipException
    raise AirflowSkipException("not today")

stop()

@task.device(device="gpu", gang=2)
def member(number):
    gang = current_lease().gang
    return f"rank {gang.rank} of {gang.size}"

@task
def members(texts):
    print("GANG", list(texts))

members(member.expand(number=[1, 2]))
DeviceBashOperator(task_id="bash", device="gpu", bash_command='echo "SEES $CUDA_VISIBLE_DEVICES"')
DeviceAvailableSensor(task_id="room", device="gpu:2", timeout=60)

@task.device_bash(device="gpu")
def shell(word):
    return f'echo "SHELL {word} $CUDA_VISIBLE_DEVICES"'

shell("sees")

@task.torchrun(device="gpu:2")
def in_ranks(factor, run_id=None):
    import os
    return {"ranks": int(os.environ["WORLD_SIZE"]) * factor, "has_run": bool(run_id)}

@task
def after(result):
    print("RANKS", result)

after(in_ranks(10))
TorchrunOperator.partial(task_id="ranks", module="platform", device="gpu:2").expand(node_rank=[0, 1])
"""

FAILURES = """
def handle(context):
    print("CALLBACK", type(context["exception"]).__name__, context["exception"].reason)

@task.device(device="gpu", retries=1, retry_delay=timedelta(seconds=0))
def mistaken(ti=None):
    if ti.try_number == 1:
        raise OSError(5, "the disk")

@task.device(device="gpu", on_failure_callback=handle)
def fail():
    import local_errors
    raise local_errors.NoData(reason="no data")

mistaken()
fail()

@task.device(device="gpu")
def die():
    os.kill(os.getpid(), 9)

die()
DevicePythonOperator(task_id="impossible", device="nvidia/a100:4", python_callable=print, retries=2)
"""

CHECKPOINTS = """
@task.device(device="gpu", checkpoint={"url": "s3://nobody/reaches-this"}, retries=1, retry_delay=timedelta(0))
def train(ti=None):
    from hetero_airflow.runtime import checkpoint
    class Counter:
        steps = 0
        def state_dict(self):
            return {"steps": self.steps}
        def load_state_dict(self, state):
            self.steps = state["steps"]
    counter, done = Counter(), 0
    for step in checkpoint.steps(4, every=1, state={"counter": counter}):
        counter.steps += 1
        done += 1
        if ti.try_number == 1 and step == 2:
            raise OSError("try again")
    print("STEPS", counter.steps, "OF TRY", ti.try_number, "DID", done)

@task
def prepare():
    pass

trained = train()
prepare() >> trained >> CheckpointSensor(task_id="after", of_task="train", complete=True, timeout=30)
for name, deferrable in (("beside", True), ("poking", False)):  # each is asked before `train` runs
    CheckpointSensor(task_id=name, of_task="train", complete=True, timeout=30, deferrable=deferrable)
"""


@pytest.fixture(scope="module")
def outputs(home, tmp_path_factory):
    """The outputs of three DAGs, which one process runs."""
    local = LocalRuns(home, tmp_path_factory.mktemp("outputs"))
    (local.folder / "local_errors.py").write_text(ERRORS)
    outputs = local.run(TASKS, FAILURES, CHECKPOINTS, PYTHONPATH=f"{ROOT}{os.pathsep}{local.folder}")
    assert local.lease_files() == []
    return dict(zip(("TASKS", "FAILURES", "CHECKPOINTS"), outputs, strict=True))


def test_device_tasks_run_on_this_machines_devices(outputs):
    output = outputs["TASKS"]
    assert "STATE success" in output, output
    assert "LEASE 1 × nvidia/h100-80gb (simulated) on" in output
    assert "(local run): simulated-nvidia-h100-80gb-" in output
    assert "CHILD True 3 7" in output
    assert "HALF 0.5 of a (cooperative) nvidia/h100-80gb" in output
    assert "not today" in output
    assert "GANG ['rank 0 of 1', 'rank 0 of 1']" in output
    assert "each one runs as a gang of one" in output
    assert "SEES simulated-nvidia-h100-80gb-" in output
    assert "SHELL sees simulated-nvidia-h100-80gb-" in output
    assert "RANKS {'ranks': 20, 'has_run': True}" in output
    assert output.count("Starting 2 processes of") == 3


def test_a_failure_reaches_airflow_with_its_own_type_and_the_retries_of_the_task(outputs):
    output = outputs["FAILURES"]
    assert "STATE failed" in output, output
    assert "CALLBACK NoData no data" in output
    assert "signal 9 (SIGKILL)" in output
    assert "4 × nvidia/a100 on" in output
    assert "no such device (model: asked nvidia/a100" in output


def test_checkpoints_go_to_a_folder_of_the_run_and_its_sensors_find_them(outputs, home):
    output = outputs["CHECKPOINTS"]
    assert "STATE success" in output, output
    assert "no checkpoint of train with complete; other tasks run first" in output
    assert re.search(r"STEPS 4 OF TRY 2 DID [1-3]\b", output), output
    folders = list((home / "local_runs").glob("*/local2/train/*/-1"))
    assert len(folders) == 1


HOLDER = """
@task.device(device="gpu:2")
def hold():
    print("BEGIN", time.monotonic(), flush=True)
    time.sleep(2)
    print("END", time.monotonic(), flush=True)

hold()
"""


def times(output, mark):
    return [float(line.rpartition(mark)[2].split()[0]) for line in output.splitlines() if f"{mark} " in line]


def read_until(run, mark):
    """The lines of the output up to the first with this mark, which a run that ends before does not have."""
    lines = []
    for line in run.stdout:
        lines.append(line)
        if mark in line:
            break
    return "".join(lines)


def test_two_runs_take_turns_on_the_devices(local):
    """The second starts while the first holds: Airflow itself fails where two runs store a new DAG at once."""
    let_go = local.folder / "let_go"
    wait = f"while not Path({str(let_go)!r}).exists():\n        time.sleep(0.1)"
    path = local.write(HOLDER.replace("time.sleep(2)", wait))
    with local.start(sys.executable, str(path)) as first:
        outputs = [read_until(first, "BEGIN")]
        with local.start(sys.executable, str(path)) as second:
            outputs.append(read_until(second, "waiting for 2 × gpu"))
            let_go.touch()
            for number, run in enumerate((first, second)):
                outputs[number] += run.communicate(timeout=600)[0]
    assert all("STATE success" in output for output in outputs), outputs
    periods = sorted([*times(output, "BEGIN"), *times(output, "END")] for output in outputs)
    assert periods[1][0] >= periods[0][1]
    assert "the local run of local.hold (process" in outputs[1]


def test_a_killed_run_leaves_its_devices_to_the_next(local):
    path = local.write(HOLDER.replace("sleep(2)", "sleep(600)"))
    with local.start(sys.executable, str(path)) as run:
        for line in run.stdout:
            if "BEGIN" in line:
                break
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
    (output,) = local.run(HOLDER.replace("sleep(2)", "sleep(0)"))
    assert "STATE success" in output


def test_the_commands_of_airflow_and_a_task_in_process_work_too(local):
    local.write(
        """
        @task.device(device="gpu")
        def show():
            print("LEASE", current_lease(), "PROCESS", os.getpid())

        show()
        """
    )
    for command in (("dags", "test", "local"), ("tasks", "test", "local", "show")):
        run = local.start("airflow", *command, HETERO_AIRFLOW_IN_PROCESS="1")
        output = run.communicate(timeout=600)[0]
        assert "LEASE 1 × nvidia/h100-80gb" in output, output
        assert "(local run): simulated-nvidia-h100-80gb-" in output
        assert f"PROCESS {run.pid}\n" in output
        assert run.returncode == 0


def test_a_breakpoint_in_a_task_reads_from_the_terminal(local):
    path = local.write(
        """
        @task.device(device="gpu")
        def stop():
            answer = 41
            breakpoint()
            print("ANSWER", answer)

        stop()
        """
    )
    run = local.start(sys.executable, str(path))
    output = run.communicate("answer = 42\ncontinue\n", timeout=120)[0]
    assert "ANSWER 42" in output, output
