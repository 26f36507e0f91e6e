"""Which modules can be preloaded, by real imports in processes of their own."""

import json
import shutil
import subprocess
import sys

import pytest

from hetero_airflow.engines.preload import parse_preload, preload_problem
from hetero_airflow.errors import SettingsError

MODULES = {
    "harmless": "import random",
    "broken": "raise ValueError('no such licence')",
    "exits": "import sys; sys.exit(3)",
    "aborts": "import os; os.abort()",
    "hangs": "import time; time.sleep(60)",
    "starts_thread": "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "noisy": "print('hello')",
    "uses_cuda": "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)",
}

LIBCUDA = """
static int initialised = 0;
int cuInit(unsigned flags) { initialised = 1; return 0; }
int cuDeviceGetCount(int *count) { if (!initialised) return 3; *count = 1; return 0; }
"""
"""As libcuda answers before and after `cuInit`."""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """The modules, where the trial finds them."""
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("harmless", ""),
        ("noisy", ""),
        ("no_such_module", "the import of no_such_module raised ModuleNotFoundError: No module named 'no_such_module'"),
        ("broken", "the import of broken raised ValueError: no such licence"),
        ("exits", "the import of exits raised SystemExit: 3"),
        ("starts_thread", "starts_thread starts 1 threads when it is imported, which its forks would not have"),
    ],
)
def test_a_module_that_does_not_suit_is_named(modules, name, problem):
    assert preload_problem(["harmless", name]) == problem


def test_a_module_that_ends_the_process_or_hangs_is_reported(modules):
    assert preload_problem(["aborts"]).startswith("the process that imported them ended with -6")
    assert preload_problem(["hangs"], timeout_s=2) == "their import did not end within 2 s"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler makes a stand-in of libcuda")
def test_a_module_that_initialises_cuda_is_refused(modules, monkeypatch):
    (modules / "libcuda.c").write_text(LIBCUDA)
    library = modules / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, modules / "libcuda.c"], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(modules))
    assert preload_problem(["harmless"]) == ""
    assert preload_problem(["uses_cuda"]).startswith("uses_cuda initialises CUDA when it is imported")


@pytest.mark.parametrize("text", ["torch lightning", "os;import x", "../x", "a-b", "torch,1"])
def test_a_text_that_names_no_module_is_refused(text):
    with pytest.raises(SettingsError, match="no name of a module"):
        parse_preload(text)


def test_only_the_process_of_a_task_gets_new_random_numbers():
    """A task's own forks keep its random state, as without preload: users seed before they fork."""
    code = """
import json, os
from hetero_airflow.engines.preload import preload
preload(["torch", "numpy", "numpy.random"])
import numpy, torch

def fork(body):
    read, write = os.pipe()
    if os.fork() == 0:
        with open(write, "w") as pipe:
            json.dump(body(), pipe)
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        value = json.load(pipe)
    os.wait()
    return value

def drawn():
    return [torch.randint(10**9, (1,)).item(), int(numpy.random.randint(10**9))]

def task():
    first = drawn()
    torch.manual_seed(7)
    numpy.random.seed(7)
    return first, [fork(drawn), fork(drawn)]

print(json.dumps([fork(lambda: fork(task)) for _ in range(3)]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    tasks = json.loads(done.stdout)
    assert len({number for first, _ in tasks for number in first}) == 6
    assert len({tuple(forked) for _, forks in tasks for forked in forks}) == 1
