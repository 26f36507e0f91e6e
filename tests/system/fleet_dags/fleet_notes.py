"""Notes of the tasks of a fleet, one line each. The tests read them."""

import json
import os
import time
from pathlib import Path


def note(**what):
    line = json.dumps({**what, "pid": os.getpid(), "at": time.time()})
    with Path(os.environ["AIRFLOW_HOME"], "notes.jsonl").open("a") as file:
        file.write(line + "\n")


def nap(name, nap_s):
    """Sleep for so long, or until the test lets the task hurry."""
    end = time.monotonic() + nap_s
    while time.monotonic() < end and not Path(os.environ["AIRFLOW_HOME"], f"{name}.hurry").exists():
        time.sleep(0.05)
