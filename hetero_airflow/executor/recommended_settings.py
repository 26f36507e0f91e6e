"""Recommended settings of Airflow for device tasks, each with the cost of leaving it as it is."""

import json
from dataclasses import dataclass

from hetero_airflow.contract.executor_names import COORDINATOR_CLASSPATH, COORDINATOR_NAME, EXECUTOR_CLASSPATH


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One setting: section, option, recommended value, what happens without it, and what it means for other DAGs."""

    section: str
    option: str
    value: str
    cost: str
    others: str
    """What it does to tasks without a device request."""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"AIRFLOW__{self.section.upper()}__{self.option.upper()}"


def recommendations(queue: str, engine: str = "local") -> tuple[Recommendation, ...]:
    """The settings for device tasks in this queue of Airflow, with this engine."""
    return (*_for_all(queue), *_FOR_ENGINE.get(engine, ()))


_FOR_ENGINE = {
    "kubernetes": (
        Recommendation(
            "scheduler",
            "task_queued_timeout",
            "3600",
            "a pod that needs more than 7 min to start, as with large images, is recreated before it can start",
            "one that is stuck in the queue is found after an hour, before after 10 min",
        ),
        Recommendation(
            "kubernetes_executor",
            "worker_pods_creation_batch_size",
            "16",
            "each heartbeat of the scheduler creates one pod, and the devices of the other tasks are idle meanwhile",
            "their pods are created faster",
        ),
        Recommendation(
            "kubernetes_executor",
            "task_publish_max_retries",
            "-1",
            "a task fails if a quota of its namespace is used up when its pod is created",
            "they wait for the quota, too",
        ),
    )
}
"""Engine → its additional settings. Those of the section with which the common ones end come first."""


def _for_all(queue: str) -> tuple[Recommendation, ...]:
    return (
        Recommendation(
            "core",
            "executor",
            EXECUTOR_CLASSPATH,
            "device tasks run unplaced: two may use the same device",
            "they go on to the engine as before; those of other executors in the list are not concerned",
        ),
        Recommendation(
            "sdk",
            "coordinators",
            json.dumps({COORDINATOR_NAME: {"classpath": COORDINATOR_CLASSPATH}}),
            "devices are bound after the DAG file is parsed, and a task whose supervisor dies keeps its device",
            "nothing",
        ),
        Recommendation(
            "sdk",
            "queue_to_coordinator",
            json.dumps({queue: COORDINATOR_NAME}),
            "the coordinator is not called for device tasks",
            "nothing, unless a task names this queue",
        ),
        Recommendation(
            "workers",
            "min_heartbeat_interval",
            "1",
            "a marked, cleared or preempted task hears of it up to 5 s late",
            "each running task sends a heartbeat every second, before every 5 s",
        ),
        Recommendation(
            "workers",
            "execution_api_retries",
            "20",
            "a task that starts while the API server restarts gives up after 15 s, and is placed again later",
            "they wait for an API server that is away for longer, before they fail",
        ),
        Recommendation(
            "workers",
            "execution_api_retry_wait_max",
            "5",
            "a task notices up to 90 s late that the API server is back, and Airflow takes it for dead meanwhile",
            "they ask an API server that is away every 5 s",
        ),
        Recommendation(
            "workers",
            "max_failed_heartbeats",
            "60",
            "a running task is stopped once the API server has been away for 2 to 3 min",
            "they outlive such an outage, too",
        ),
        Recommendation(
            "execution_api",
            "jwt_expiration_time",
            "3600",
            "a running task loses its token, and is stopped, if the API server is away for 2 min or longer",
            "their tokens are valid for an hour, before for 10 min",
        ),
        Recommendation(
            "scheduler",
            "orphaned_tasks_check_interval",
            "30",
            "after a crash of the scheduler, waiting tasks wait up to 300 s more",
            "they are taken over sooner; each scheduler makes one more query every 30 s",
        ),
        Recommendation(
            "scheduler",
            "task_instance_heartbeat_timeout",
            "60",
            "a task that is frozen, or whose scheduler's host is gone, holds its devices for 300 s",
            "one without a heartbeat for 60 s is lost, before for 300 s",
        ),
    )
