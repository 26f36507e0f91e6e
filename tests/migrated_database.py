"""An SQLite database with Airflow's tables and ours. A run of the tests migrates it once; its users copy it."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.run_environment import run_folder


def copy_migrated_database(path: Path) -> None:
    """Put a migrated database there. The first process that asks makes it, and the others wait."""
    folder = run_folder() / "pytest-of-database"
    folder.mkdir(exist_ok=True)
    made = folder / "airflow.db"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _migrate(folder / "home" / "airflow.db")
            (folder / "home" / "airflow.db").rename(made)
    shutil.copy(made, path)


def _migrate(path: Path) -> None:
    names = [name for name in os.environ if not name.startswith(("AIRFLOW", "HETERO"))]
    environment = {
        **{name: os.environ[name] for name in names},
        "AIRFLOW_HOME": str(path.parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{path}",
    }
    path.parent.mkdir()
    command = [sys.executable, "-m", "airflow", "db", "migrate"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"airflow db migrate ended with {done.returncode}:\n{done.stdout}{done.stderr}")
