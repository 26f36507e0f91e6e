"""The environment of a run of the tests, set when this is imported; and what the run leaves behind.

All that tests and their processes write to ``TMPDIR`` goes to a folder of the run. Its name in a process's environment
tells that the process is one of the run's.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil

VARIABLE = "TESTS_TEMPORARY_FOLDER"
"""Environment variable: the folder of the run."""


def _set_environment() -> None:
    """Before anything imports airflow or torch."""
    if VARIABLE not in os.environ:  # else another process of the run has made it
        os.environ[VARIABLE] = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="tests-")
        os.chmod(os.environ[VARIABLE], 0o711)  # some tests run programs as another user
        tempfile.tempdir = None  # to be found again, in this environment
    # The examples that come with Airflow register a listener, and the home of whoever runs the tests is not for them.
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ.setdefault("AIRFLOW_HOME", f"{os.environ[VARIABLE]}/pytest-of-airflow")
    # Lease files go below TMPDIR, which tests set, and not into the user's runtime directory.
    os.environ["XDG_RUNTIME_DIR"] = os.path.join(os.environ["AIRFLOW_HOME"], "no-runtime-directory")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{os.environ[VARIABLE]}/pytest-of-torch"
    # The threads of one computation compute while they wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


_set_environment()


def files() -> list[str]:
    """The names of what is left in the folder, without pytest's own folder and an empty one for lease files."""
    return sorted(
        path.name for path in run_folder().iterdir() if not path.name.startswith("pytest-of-") and not _is_kept(path)
    )


def _is_kept(path: Path) -> bool:
    """Whether it is the host's folder for lease files, without a lease."""
    return path.name.startswith("hetero-airflow-leases-") and not any(path.iterdir())


def processes() -> list[str]:
    """The processes of the run that still live, without this one and its children, after a minute to end."""
    end = time.monotonic() + 60
    while (found := _processes()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def _processes() -> list[str]:
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    return [
        f"{process.pid} {' '.join(process.info['cmdline'] or [process.info['name']])[:200]}"
        for process in psutil.process_iter(["cmdline", "name", "environ", "status"])
        if process.pid not in own
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and (process.info["environ"] or {}).get(VARIABLE) == os.environ[VARIABLE]
    ]


def remove_folder() -> None:
    """Remove the folder with all that is in it."""
    shutil.rmtree(run_folder(), ignore_errors=True)


def run_folder() -> Path:
    """The folder of the run."""
    return Path(os.environ[VARIABLE])
