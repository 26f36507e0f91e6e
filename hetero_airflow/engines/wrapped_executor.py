"""What all engines that wrap one executor of Airflow pass on to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from hetero_airflow.engines.engine import EngineContext


class WrappedExecutor:
    """One of Airflow's executors; engines add where device tasks go, and what is known of them."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    def start(self, surroundings: EngineContext) -> None:
        """Start the executor."""
        surroundings.apply_to(self.executor)
        self.executor.start()

    def accept(self, workload: Any, session: Session) -> None:
        """Take a workload that asks for no device, exactly as the executor alone would."""
        self.executor.queue_workload(workload, session)

    def has_task(self, task_instance: Any) -> bool:
        """Whether the executor still has the task."""
        return bool(self.executor.has_task(task_instance))

    def try_adopt(self, task_instances: Sequence[Any]) -> Sequence[Any]:
        """Follow tasks that another scheduler handed over; those that the executor can't follow are returned."""
        return self.executor.try_adopt_task_instances(task_instances)  # type: ignore[no-any-return]

    def fail_connection_test(self, key: Any) -> None:
        """Forget a connection test that Airflow gave up."""
        self.executor.fail_connection_test(key)

    def terminate(self) -> None:
        """Stop without waiting."""
        self.executor.terminate()
