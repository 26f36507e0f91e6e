"""The 60 jobs that `make bench-pools` runs under two schedulers, and what they leave for the witness.

A job trains for some steps on one or two simulated GPUs: it sleeps, and writes down each step and the devices it uses.
"""

import os
import random
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

GPUS = {"h100": 4, "a100": 2}
STEP_S = {"h100": 0.1, "a100": 0.16}
LOAD_S = 1.0
"""Between a task's choice of a GPU and the moment when others see it there: the framework is loaded. It takes
PyTorch some seconds to be imported and to open a GPU."""
CRASH_AT = 35
"""The step at which the process of the job that crashes is killed, once."""


@dataclass(frozen=True)
class Job:
    """One of the tasks.

    :param gpus: 1 or 2, of one model
    :param any_model: whether an A100 will do; else it has to be an H100
    """

    number: int
    gpus: int
    steps: int
    any_model: bool
    priority: str
    crashes: bool


def _jobs() -> list[Job]:
    rng = random.Random(7)
    jobs = []
    for number in range(60):
        steps = 45 if number == 7 else rng.randrange(10, 50)
        priority = rng.choice(("high", "medium", "low"))
        jobs.append(Job(number, 1 + (rng.random() < 1 / 3), steps, rng.random() < 0.5, priority, number == 7))
    return jobs


JOBS = _jobs()


def visible_gpus() -> set[str]:
    """The GPUs with a process, in place of nvidia-smi."""
    paths = (path for path in _folder("pools").iterdir() if Path("/proc", path.suffix[1:]).exists())
    return {gpu for path in paths for gpu in path.read_text().partition("\n")[0].split()}


def train(dag: str, job: Job, gpus: Sequence[str], steps: Iterable[int]) -> None:
    """Run the steps, and write down the GPUs, the begin, and each step with its end."""
    time.sleep(LOAD_S)
    step_s = max(seconds for model, seconds in STEP_S.items() if model in gpus[0])
    with (_folder(dag) / f"{job.number}.{os.getpid()}").open("w", buffering=1) as uses:
        uses.write(f"{' '.join(gpus)}\n-1 {time.time()}\n")
        for step in steps:
            time.sleep(step_s)
            uses.write(f"{step} {time.time()}\n")
            crashed = _folder(dag).with_name(f"{dag}-crashed")
            if job.crashes and step == CRASH_AT and not crashed.exists():
                crashed.touch()
                os.kill(os.getpid(), signal.SIGKILL)


def _folder(dag: str) -> Path:
    folder = Path(os.environ["BENCH_POOLS"], dag)
    folder.mkdir(exist_ok=True)
    return folder
