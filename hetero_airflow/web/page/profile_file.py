"""Fetches the trace that a task with ``profile=True`` has kept.

A process of its own does it, ``python -P -m hetero_airflow.web.page.profile_file KEY TARGET``: the credentials of the
store must not get into the API server's environment, and what reads the store may be large and may hang.
"""

import re
import subprocess
import sys
import threading
from pathlib import Path

from hetero_airflow.checkpoints.configured import checkpoint_options, configured_store
from hetero_airflow.checkpoints.place import checkpoint_path
from hetero_airflow.errors import HeteroError

MAX_BYTES = 1 << 29
TIMEOUT_S = 60.0
MAX_AT_ONCE = 2

_turns = threading.BoundedSemaphore(MAX_AT_ONCE)


def is_profile_of(key: str, dag_id: str, task_id: str, run_id: str) -> bool:
    """Whether a key, which the task has reported, is that of a trace of this task.

    >>> is_profile_of("etl/fit/r1/-1/profile-7-0badcafe.json.gz", "etl", "fit", "r1")
    True
    >>> is_profile_of("etl/fit/r1/-1/../../../other/secret", "etl", "fit", "r1")
    False
    """
    folder = checkpoint_path(dag_id, task_id, run_id, 0).rpartition("/")[0]
    return re.fullmatch(rf"{re.escape(folder)}/-?[0-9]+/profile-[0-9]+-[0-9a-f]{{8}}\.json\.gz", key) is not None


def fetch_profile(key: str, target: Path) -> str:
    """Copy a trace from the store of ``[hetero] checkpoint_url`` into a new file; why that failed, empty if it did not.

    It blocks for up to a minute.
    """
    if not _turns.acquire(blocking=False):
        return f"{MAX_AT_ONCE} other profiles are read now. Try again in a minute."
    try:
        command = [sys.executable, "-P", "-m", __name__, key, str(target)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"The store of checkpoints did not answer in {TIMEOUT_S:.0f} s."
    finally:
        _turns.release()
    if done.returncode:
        found = done.stdout.strip().splitlines()[-1:] or ["the process that reads it ended"]
        return f"{found[0]} If the task keeps its checkpoints elsewhere, its log names the place."
    return ""


def main(key: str, target: str) -> int:
    """Fetch; print the error, if there is one."""
    try:
        configured_store(checkpoint_options()).fetch(key, Path(target), at_most=MAX_BYTES)
    except HeteroError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
