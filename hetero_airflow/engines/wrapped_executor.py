"""The calls that every engine passes on to the Airflow executor that it wraps."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from hetero_airflow.engines.engine import Cluster, EngineContext, PromptEnds


class WrappedExecutor:
    """One of Airflow's executors. Engines add where device tasks run and what is known about their processes."""

    cluster: Cluster | None = None
    prompt_ends: PromptEnds | None = None

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    def start(self, context: EngineContext) -> None:
        """Start the executor."""
        context.apply_to(self.executor)
        self.executor.start()

    def accept(self, workload: Any, session: Session) -> None:
        """Take a workload that asks for no device."""
        self.executor.queue_workload(workload, session)

    def has_task(self, task_instance: Any) -> bool:
        """Whether the executor still has the task."""
        return bool(self.executor.has_task(task_instance))

    def is_busy_with(self, task_instance: Any) -> bool:
        """Whether the executor runs the task or has it queued."""
        return self.has_task(task_instance)

    def forget(self, key: Any) -> None:
        """Count a task no longer whose process is lost."""
        self.executor.running.discard(key)

    def try_adopt(self, task_instances: Sequence[Any]) -> Sequence[Any]:
        """Follow the tasks of another scheduler. Returns those that the executor can't follow."""
        return self.executor.try_adopt_task_instances(task_instances)  # type: ignore[no-any-return]

    def fail_connection_test(self, key: Any) -> None:
        """Forget a connection test that Airflow gave up."""
        self.executor.fail_connection_test(key)

    def terminate(self) -> None:
        """Stop without waiting."""
        self.executor.terminate()
