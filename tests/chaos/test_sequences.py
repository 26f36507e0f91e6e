"""Random faults in random order, while sixty short tasks run under one or more schedulers: nothing is lost, nothing is
used twice, no retry is spent, and every task ends."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_airflow import LocalAirflow

from tests.celery_fleet import running_fleet
from tests.chaos.conftest import BACKEND, ENGINE, NAMES, REPLAY, SEEDS, SETTINGS, service_manager
from tests.chaos.dag_modules import DAGS, dag_module
from tests.chaos.disturber import DAG_ID, Disturber
from tests.chaos.sequence import Sequence, random_sequence, read_sequence
from tests.chaos.table import SequenceRow, Table, done_sequences
from tests.chaos.verdict import done_again, doubles, longest_wait_s, lost, retries_spent, shared_tokens, unended
from tests.edge_fleet import running_edge_fleet
from tests.postgres_server import running_postgres
from tests.worker_fleet import Fleet

SCHEDULERS = int(os.environ.get("CHAOS_SCHEDULERS") or 1)
KINDS = os.environ.get("CHAOS_STEPS", "").split()
ROOT = Path(__file__).resolve().parents[2]

SIMULATED = "nvidia/h100-80gb:4,ascend/910b:2"
END_S = 300.0
"""After the last fault, all tasks must end within this time."""

TASKS = {"whole": 20, "half": 16, "npu": 14, "plain": 10}
WORKERS = {"w1": "nvidia/h100-80gb:2,ascend/910b:1", "w2": "nvidia/h100-80gb:2,ascend/910b:1"}
"""For other engines than `local`: the same devices on two workers, which also run what needs none."""


def sequences() -> list[Any]:
    """Those of the seeds, or the one to replay: from its file, or from its seed."""
    seeds = SEEDS if "sequence" in NAMES else []
    if REPLAY and REPLAY.isdigit():
        seeds = [int(REPLAY)]
    chosen = [random_sequence(seed, ENGINE, BACKEND, SCHEDULERS, TASKS, KINDS) for seed in seeds]
    if REPLAY and not REPLAY.isdigit():
        chosen = [read_sequence(Path(REPLAY).read_text())]
    return [pytest.param(sequence, id=sequence.name) for sequence in chosen]


@contextlib.contextmanager
def running_airflow(sequence: Sequence, home: Path) -> Iterator[tuple[LocalAirflow, Any, Fleet | None]]:
    """A new Airflow for one sequence, with a service manager; its PostgreSQL, and its workers."""
    settings = {
        **{name: value for name, value in SETTINGS.items() if "CHECKPOINT" not in name},
        "AIRFLOW__CORE__PARALLELISM": "12",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        # a message to a Celery worker dies with it; Airflow sends a plain task again after this time, 600 s by default
        "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "150",
        "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "10",
        "PYTHONPATH": str(DAGS),
    }
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(running_postgres()) if sequence.backend == "postgres" else None
        if sequence.engine == "local":
            airflow = LocalAirflow(
                home,
                home / "dags",
                database=postgres.url if postgres else None,
                simulated=SIMULATED,
                settings={**settings, "AIRFLOW__CORE__HOSTNAME_CALLABLE": "chaos_host.name"},
                schedulers=sequence.schedulers,
            )
            stack.enter_context(airflow)
            fleet = None
        else:
            assert postgres is not None, "the engines celery and edge need PostgreSQL: BACKEND=postgres"
            running = {"celery": running_fleet, "edge": running_edge_fleet}[sequence.engine]
            fleet = stack.enter_context(
                running(home, home / "dags", postgres.url, {}, settings, schedulers=sequence.schedulers)
            )
            airflow = fleet.airflow
            for name, simulated in WORKERS.items():
                fleet.add(name, simulated, "default")
            fleet.wait_for(*WORKERS)
        stack.enter_context(service_manager(airflow))
        yield airflow, postgres, fleet


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sequence", sequences())
def test_a_random_sequence_of_faults_costs_nothing(sequence: Sequence, table: Table) -> None:
    if sequence.schedulers > 1 and sequence.backend != "postgres":
        pytest.skip("several schedulers need PostgreSQL: BACKEND=postgres")
    if not REPLAY and sequence.name in done_sequences(table.path):
        pytest.skip("the table has this seed already")
    home = ROOT / ".airflow" / "chaos" / sequence.name
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(DAGS, home / "dags", ignore=shutil.ignore_patterns("__pycache__", "chaos_dags.py"))
    (home / "sequence.json").write_text(sequence.to_json())
    row, problems = run(sequence, home)
    if not REPLAY:
        table.add(row)
    print(f"\n{row}")
    if problems:
        faults = (home / "witness" / "faults.jsonl").read_text()
        pytest.fail(
            "\n".join(["", *problems, "", "What happened:", faults, f"Again: make chaos REPLAY={home}/sequence.json"]),
            pytrace=False,
        )


def run(sequence: Sequence, home: Path) -> tuple[SequenceRow, list[str]]:
    """Carry a sequence out on a new Airflow: its row of the table, and what is wrong."""
    folder = home / "witness"
    folder.mkdir()
    began = time.monotonic()
    with running_airflow(sequence, home) as (airflow, postgres, fleet):
        run_id = airflow.trigger(DAG_ID, {"folder": str(folder), "plan": dict(sequence.plan)})
        witness = dag_module("chaos_witness").Witness(folder)
        airflow.wait_until(witness.lines, "the first task to begin")
        disturber = Disturber(airflow, postgres, fleet, folder, run_id)
        disturber.carry_out(sequence)
        airflow.wait_until(lambda: answers(airflow), "the API server to answer")
        with contextlib.suppress(TimeoutError):
            airflow.wait_until(lambda: ended(airflow, run_id), "all tasks to end", END_S, every_s=1)
        with contextlib.suppress(TimeoutError):
            airflow.wait_until_freed()
        tasks = [task for task in airflow.tasks(DAG_ID, run_id) if task["map_index"] >= 0]
        leases = [str(lease) for lease in airflow.store().snapshot().leases]
    journal = witness.lines()
    double, tokens = doubles(journal), shared_tokens(journal)
    spent = retries_spent(tasks, disturber.cleared)
    lost_tasks, not_ended = lost(tasks, journal, disturber.marked), unended(tasks)
    if len(tasks) != sum(map(len, sequence.plan.values())):
        lost_tasks.append(f"Airflow has {len(tasks)} tasks")
    row = SequenceRow(
        sequence=sequence.name,
        seed=sequence.seed,
        schedulers=sequence.schedulers,
        faults=sum("struck" in entry for entry in disturber.record),
        lost=len(lost_tasks),
        doubles=len(double),
        shared_tokens=len(tokens),
        retries=sum(spent.values()),
        not_ended=len(not_ended),
        leases_left=len(leases),
        done_again=done_again(journal, disturber.cleared),
        longest_wait_s=longest_wait_s(journal),
        took_s=time.monotonic() - began,
    )
    problems = [
        *(f"lost: {text}" for text in lost_tasks),
        *(f"double: {double_use}" for double_use in double),
        *(f"two runs used token {token}" for token in tokens),
        *(f"retries spent: {id_} has {count} tries too many" for id_, count in spent.items()),
        *(f"not ended: {text}" for text in not_ended),
        *(f"still leased: {lease}" for lease in leases),
    ]
    return row, problems


def answers(airflow: LocalAirflow) -> bool:
    """Whether the API answers; its components may be about to start again."""
    with contextlib.suppress(Exception):
        return bool(airflow.api("GET", "/dags?limit=1"))
    return False


def ended(airflow: LocalAirflow, run_id: str) -> bool:
    """Whether the run and all its tasks are over."""
    with contextlib.suppress(Exception):
        if airflow.api("GET", f"/dags/{DAG_ID}/dagRuns/{run_id}")["state"] in ("success", "failed"):
            return not unended(airflow.tasks(DAG_ID, run_id))
    return False
