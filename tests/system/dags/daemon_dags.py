"""A DAG whose tasks leave processes behind, in each way that daemons know."""

import json
import multiprocessing
import os
import subprocess
import time
from pathlib import Path

from airflow.sdk import DAG, task

from hetero_airflow.runtime import current_lease

STAY = 'echo $$ > "$0.new"; mv "$0.new" "$0"; exec sleep 600'
"""A program for sh: it writes its pid into a file, and stays."""


def stay(marker):
    with open(f"{marker}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{marker}.new", marker)
    time.sleep(600)
    os._exit(0)


def stay_in_own_session(marker):
    os.setsid()
    stay(marker)


def fork_and_setsid(marker):
    if os.fork() == 0:
        stay_in_own_session(marker)


def double_fork(marker):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            stay(marker)
        os._exit(0)


def empty_environment(marker):
    subprocess.Popen(["setsid", "env", "-i", "/bin/sh", "-c", STAY, marker])


def multiprocessing_with_setsid(marker):
    multiprocessing.get_context("fork").Process(target=stay_in_own_session, args=(marker,)).start()


def nohup_from_bash(marker):
    subprocess.run(["bash", "-c", 'nohup sh -c "$0" "$1" > /dev/null 2>&1 &', STAY, marker], check=True)


def wait_for_another_service(marker):
    """The test is this service: it starts the process."""


DAEMONS = (fork_and_setsid, double_fork, empty_environment, multiprocessing_with_setsid, nohup_from_bash)


def run_beside(start, dag_run):
    """Leave a process behind. Returns when this function ended, and the processes that used its devices beside it."""
    lease = current_lease()
    folder = Path(os.environ["AIRFLOW_HOME"]) / "daemons" / dag_run.run_id.replace(":", "")
    folder.mkdir(parents=True, exist_ok=True)
    others = [
        path.stem
        for path in folder.glob("*.lease")
        if set(json.loads(path.read_text())["ids"]) & set(lease.ids)
        and Path("/proc", path.with_suffix(".pid").read_text().strip()).exists()
    ]
    record = folder / f"{start.__name__}.lease"
    record.with_suffix(".new").write_text(json.dumps({"ids": lease.ids, "token": lease.token}))
    record.with_suffix(".new").rename(record)
    marker = record.with_suffix(".pid")
    start(str(marker))
    while not marker.exists():
        time.sleep(0.01)
    return {"end": time.time(), "others": others}


with DAG("daemons", schedule=None):
    for start in DAEMONS:

        @task.device(task_id=start.__name__, device={"gpu", "npu"}, retries=0)
        def leave_a_daemon(name, dag_run=None):
            return run_beside(globals()[name], dag_run)

        leave_a_daemon(start.__name__)

    @task.device(task_id="wait_for_another_service", device="acme/board", retries=0)
    def share_with_a_service(dag_run=None):
        return run_beside(wait_for_another_service, dag_run)

    share_with_a_service()
