"""Modules that are imported once, in a process from which the task processes are forked.

``[hetero] preload = torch,lightning``. Importing torch takes a task 1.4 s of computing and 150 MB; a fork has it
already. With Celery, the parent is the worker. With the engine local it is the fork server of `multiprocessing`: a
fresh process that imports the modules and does nothing else. The scheduler itself never imports them. When the fork
server dies, its worker processes die too, since LocalExecutor takes them for dead; both start anew, and the recovery
rules bring the tasks back.

A trial in a process of its own comes first, since an import may hang, end the process, or make it unusable for forks:

- CUDA can't be used in a fork of a process that has initialised it. Some libraries ask `torch.cuda.is_available()` when
  they are imported, so ``PYTORCH_NVML_BASED_CUDA_CHECK=1`` lets torch ask NVML instead.
- A thread that an import starts does not exist in the forks, which would wait for it.

A fork has the random state of its parent, so the processes of tasks get new seeds.
"""

import ctypes
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.settings import SECTION, default

VARIABLE = "HETERO_AIRFLOW_PRELOAD"
"""Environment variable that gives the fork server the names, separated by commas."""

LOADED = (
    "hetero_airflow.engines.host.local_worker",
    "airflow.sdk.execution_time.supervisor",
    "airflow.dag_processing.dagbag",
    "hetero_airflow.supervisor.coordinator",  # this layer knows only the names of these two, as the configuration does
    "hetero_airflow.operators",
)
"""What each process of a task imports anyway: for itself, and to read its DAG's file."""

TASK_VARIABLES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""What the process has that imports the modules, and its forks."""

PRELOADING = ("local", "celery")
"""The engines that fork the processes of tasks."""

CANNOT_PRELOAD = "hetero_airflow can't preload %s: %s. Tasks run without. Correct [hetero] preload."

TRIAL_TIMEOUT_S = 120.0

FORKS_TO_A_TASK = 2
"""The fork server forks a worker process of LocalExecutor, and a Celery worker one of its pool; that forks the process
of a task."""

_NOT_INITIALISED = 3
"""What libcuda answers before `cuInit`: CUDA_ERROR_NOT_INITIALIZED."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def parse_preload(text: str) -> tuple[str, ...]:
    """The names of modules, separated by commas.

    >>> parse_preload("torch, lightning")
    ('torch', 'lightning')

    :raises SettingsError: one is no name of a module
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if not _NAME.fullmatch(name):
            option = f"[{SECTION}] preload = {shorten(text)}"
            found, remedy = f"{shorten(name)}, which is no name of a module", "Write names such as torch,lightning"
            raise SettingsError(option, found=found, remedy=remedy)
    return names


def preload_setting() -> tuple[str, ...]:
    """The modules of ``[hetero] preload``; none where each task starts a Python of its own.

    :raises SettingsError: the option can't be read
    """
    from airflow.configuration import conf  # the command line reads names without Airflow

    if conf.getboolean("core", "execute_tasks_new_python_interpreter", fallback=False):
        return ()
    return parse_preload(conf.get(SECTION, "preload", fallback=default("preload")))


class PreloadTrial:
    """Imports the modules in a new process, beside this one.

    :param timeout_s: what takes longer does not suit
    """

    def __init__(self, names: Sequence[str], timeout_s: float = TRIAL_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115  it is closed at the end of the process
        command = [sys.executable, "-m", __name__, *names]
        self._process = subprocess.Popen(
            command,
            env=_environment(names),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def problem(self) -> str | None:
        """Why the modules can't be preloaded; empty if they can, None as long as that is not known."""
        code = self._process.poll()
        if code is None:
            if time.monotonic() < self._until:
                return None
            self.end()
            return f"their import did not end within {self._timeout_s:g} s"
        self._output.seek(0)
        lines = self._output.read().splitlines()
        self._output.close()
        for line in reversed(lines):
            with suppress(ValueError):
                problem = json.loads(line)
                if isinstance(problem, str):
                    return problem
        return f"the process that imported them ended with {code}: {' '.join(lines)[-300:]}"

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._output.close()


def preload_problem(names: Sequence[str], timeout_s: float = TRIAL_TIMEOUT_S) -> str:
    """Why these modules can't be preloaded; empty if they can. Imports them in a new process, and takes as long."""
    trial = PreloadTrial(names, timeout_s)
    while (problem := trial.problem()) is None:
        time.sleep(0.05)
    return problem


def installed_packages() -> frozenset[tuple[str, str]]:
    """The packages that Python finds, with their versions: (folder, name of the package's own folder)."""
    found = set()
    for folder in sys.path:
        with suppress(OSError):
            found |= {
                (folder, name) for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info"))
            }
    return frozenset(found)


def prepare_environment(names: Sequence[str]) -> None:
    """Set what the fork server inherits. It starts later, with the first process that is asked of it."""
    os.environ.update(_environment(names))


def _environment(names: Sequence[str]) -> dict[str, str]:
    return {**os.environ, VARIABLE: ",".join(names), **TASK_VARIABLES}


def preload(names: Sequence[str], *, dies_with_parent: bool = True) -> None:
    """Import the modules in this process, and let the processes of tasks draw other random numbers.

    :param dies_with_parent: whether the forks of this process end with it, also when it is killed
    """
    for name in names:
        import_module(name)
    gc.collect()
    gc.freeze()  # else each fork would copy the pages of all objects at its first collection
    forks = 0

    def count_fork() -> None:
        nonlocal forks
        forks += 1
        if forks == 1 and dies_with_parent:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        elif forks == FORKS_TO_A_TASK:
            reseed()

    os.register_at_fork(after_in_child=count_fork)


def reseed() -> None:
    """Give torch and numpy new random states. Python's own `random` does that by itself in each fork."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(int.from_bytes(os.urandom(7), "big"))
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def _trial(names: Sequence[str]) -> str:
    """Import the modules one by one, and say what the first unsuitable one does."""
    with suppress(ImportError):
        import_module("numpy")  # the threads of its BLAS survive forks: they end before, and start after
    threads = _thread_count()
    for name in names:
        try:
            import_module(name)
        except BaseException as error:  # noqa: BLE001  a module may raise anything when it is imported
            return f"the import of {name} raised {type(error).__name__}: {str(error)[:200]}"
        if (started := _thread_count() - threads) > 0:
            return f"{name} starts {started} threads when it is imported, which its forks would not have"
        if _uses_cuda():
            return f"{name} initialises CUDA when it is imported, and CUDA can't be used in a fork then"
    return ""


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def _uses_cuda() -> bool:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return int(cuda.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != _NOT_INITIALISED


if __name__ == "__main__":
    print(json.dumps(_trial(sys.argv[1:])))
