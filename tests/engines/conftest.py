"""What is handed over to an engine whose tasks run on other hosts, and what it says of it."""

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from airflow.executors.workloads import ExecuteTask
from airflow.executors.workloads.base import BundleInfo
from airflow.executors.workloads.task import TaskInstanceDTO

from hetero_airflow.engines.engine import LeasedProcess
from hetero_airflow.model.lease import Claim, Lease, LeaseState
from hetero_airflow.testing import EPOCH


@pytest.fixture
def heartbeats():
    """Worker → the last heartbeat of its agent."""
    return {}


def a_task(name, queue="default", **fields):
    """A workload that Airflow has queued; `fields` override."""
    values = {"external_executor_id": str(uuid4())} | fields
    ti = TaskInstanceDTO(
        id=uuid4(), task_id=name, dag_id="dag", run_id="run", try_number=1, dag_version_id=uuid4(), queue=queue,
        pool_slots=1, priority_weight=1, **values,
    )  # fmt: skip
    bundle = BundleInfo(name="dags", version=None)
    return ExecuteTask(ti=ti, dag_rel_path=Path("dag.py"), token="hunter2", log_path=None, bundle_info=bundle)


def a_lease(task, worker="w1"):
    """A lease for this task of one GPU of a worker, that nobody has used."""
    return Lease(
        id=f"of {task.ti.task_id}", request_id=str(task.ti.id), worker_id=worker, alternative=0,
        claims=(Claim("GPU-0", 1000),), token=1, state=LeaseState.GRANTED, granted_at=EPOCH,
        expires_at=EPOCH + timedelta(seconds=15),
    )  # fmt: skip


def liveness(engine, lease, state="running", seen_at=None):
    """What the engine says of the process of a lease."""
    return engine.liveness_of([LeasedProcess(lease, state, 100, "w1", seen_at, True)])[lease.id]
