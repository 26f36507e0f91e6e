import fcntl
import gc
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hetero_airflow.runtime.scratch_folder import FRESH_S, LOCK, PREFIX, ScratchFolder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def abandoned(folder: Path, age_s: float) -> Path:
    root = folder / f"{PREFIX}{age_s}"
    root.mkdir()
    (root / "tensors").write_bytes(b"x" * 1000)
    (root / LOCK).touch()
    os.utime(root, (time.time() - age_s,) * 2)
    return root


def test_the_folder_of_a_killed_process_is_removed_by_the_next_process(temporary: Path) -> None:
    old, fresh, living = (abandoned(temporary, age_s) for age_s in (2 * FRESH_S, 0, 3 * FRESH_S))
    with (living / LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        scratch = ScratchFolder()
    assert not old.exists()
    assert fresh.exists()
    assert living.exists()
    assert scratch.path().parent.is_dir()


def test_a_link_is_left_alone(temporary: Path, tmp_path_factory) -> None:
    target = tmp_path_factory.mktemp("target")
    (target / "precious").touch()
    os.utime(target, (0, 0))
    (temporary / f"{PREFIX}link").symlink_to(target)
    ScratchFolder()
    assert (target / "precious").exists()


def test_it_is_gone_with_its_owner_and_not_with_a_fork(temporary: Path) -> None:
    scratch = ScratchFolder()
    scratch.path().mkdir()
    child = os.fork()
    if not child:
        del scratch
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(temporary.iterdir())) == 1
    del scratch
    gc.collect()
    assert list(temporary.iterdir()) == []


AIRFLOW_TASK = """
if not (pid := os.fork()):
    atexit._clear()
    s = ScratchFolder()
    atexit._run_exitfuncs()
    os._exit(0)
os.waitpid(pid, 0)
"""
RANK = """
p = multiprocessing.get_context("fork").Process(target=lambda: globals().update(s=ScratchFolder()))
p.start()
p.join()
"""


@pytest.mark.parametrize(
    "ends", ["s.path().mkdir(); exit(85)", AIRFLOW_TASK, RANK], ids=["program", "airflow", "multiprocessing"]
)
def test_it_is_gone_when_the_process_ends(tmp_path: Path, ends: str) -> None:
    imports = "import atexit, multiprocessing, os; from hetero_airflow.runtime.scratch_folder import ScratchFolder"
    code = f"{imports}\ns = ScratchFolder()\n{ends}\nassert len(os.listdir(os.environ['TMPDIR'])) == 1"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (85 if "85" in ends else 0, [])
