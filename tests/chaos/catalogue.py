"""The faults by name. Each happens to a training at a moment that the seed chooses."""

from collections.abc import Callable

from tests.chaos import faults_checkpoints, faults_example, faults_processes, faults_s3
from tests.chaos.scene import Injury, Scene, Training

Fault = Callable[[Scene], tuple[Training, Injury]]
"""Starts a training and carries out the fault. It asserts what must hold after this fault only."""

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
"""These faults run one at a time: they affect all of Airflow, take devices from all tasks, or load the machine.
Each of the others affects one training, and the trainings of several seeds run side by side."""
