"""The pods of tasks without a device, of which Airflow may take back one that does not run yet."""

from collections.abc import Container, Mapping
from typing import Any

from hetero_airflow.engines.kubernetes.pods.pod_creation import lease_of, run_of


class PlainPods:
    """Only the scheduler's loop may change it.

    :param attempts: task key → what KubernetesExecutor knows about its current run, with its job
    """

    def __init__(self, attempts: Mapping[Any, Any]) -> None:
        self._attempts = attempts
        self._pods: dict[Any, tuple[str, str]] = {}
        """Task key → namespace and name of the pod that the cluster has, or may have."""

    def is_withdrawn(self, job: Any) -> bool:
        """Whether a task was taken back after this job was queued. The same task may have another job now."""
        if lease_of(job) is not None:
            return False
        attempt = self._attempts.get(job.key)
        return attempt is None or run_of(attempt.job) != run_of(job)

    def note(self, key: Any, namespace: str, name: str) -> None:
        """From now on, the cluster may have that pod."""
        self._pods[key] = (namespace, name)

    def take(self, key: Any) -> tuple[str, str] | None:
        """Remove and return the namespace and name of a task's pod; None if none was sent."""
        return self._pods.pop(key, None)

    def keep(self, running: Container[Any]) -> None:
        """Forget the pods of all other tasks."""
        self._pods = {key: pod for key, pod in self._pods.items() if key in running}
