"""The faults: name → what strikes a training, at a moment of the seed's choice."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos import faults_checkpoints, faults_example, faults_processes, faults_s3
from tests.chaos.scene import Injury, Scene, Training

Fault = Callable[[Scene], tuple[Training, Injury]]
"""Starts a training and strikes; what must be true of this fault alone, it asserts itself."""

FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        faults_processes.task,
        faults_processes.torchrun_rank,
        faults_processes.supervisor,
        faults_processes.scheduler,
        faults_processes.scheduler_host,
        faults_processes.triggerer,
        faults_processes.api_server,
        faults_processes.database,
        faults_processes.database_kill,
        faults_processes.stopped_task,
        faults_processes.hung_task,
        faults_processes.stopped_worker,
        faults_example.example,
        faults_checkpoints.preemption,
        faults_checkpoints.publishing,
        faults_checkpoints.truncated,
        faults_checkpoints.bit_flip,
        faults_checkpoints.full_disk,
        faults_checkpoints.two_copies,
    )
} | faults_s3.FAULTS

POSTGRES_ONLY = {"database", "database_kill"}
"""SQLite is no process."""

ALONE = {
    "scheduler", "scheduler_host", "triggerer", "api_server", "database", "database_kill", "preemption",
    "example",
}  # fmt: skip
"""Strike Airflow as a whole, take devices from whoever has them, or train with all that PyTorch brings: one at a time.
The others strike one training each, and several seeds' trainings run side by side."""
