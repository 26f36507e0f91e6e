"""Pods that the cluster refused for a moment. Each waits for its own time, and delays no other."""

import logging
import time
from typing import Any

from hetero_airflow.engines.kubernetes.calls import error_text, next_delay_s

log = logging.getLogger(__name__)


class PausedJobs:
    """Only the scheduler's loop may use it."""

    def __init__(self) -> None:
        self._jobs: list[tuple[float, Any]] = []
        """When a job of KubernetesExecutor is due, and the job."""
        self._delays_s: dict[Any, float] = {}
        """Key of a task → its last pause."""

    def pause(self, job: Any, answer: Exception) -> None:
        """Keep a job until the time that the cluster asks for, or for twice the last pause."""
        if job.key not in self._delays_s:
            log.warning("The pod of %s can't be made now (%s). It is tried again.", job.key, error_text(answer))
        delay_s = next_delay_s(answer, self._delays_s.get(job.key, 0.0))
        self._delays_s[job.key] = delay_s
        self._jobs.append((time.monotonic() + delay_s, job))

    def take_due(self) -> list[Any]:
        """Remove and return the jobs whose pauses are over."""
        now = time.monotonic()
        due = [job for due_at, job in self._jobs if due_at <= now]
        self._jobs = [(due_at, job) for due_at, job in self._jobs if due_at > now]
        return due

    def forget(self, key: Any) -> None:
        """The cluster has made the pod of a task, or never will."""
        self._delays_s.pop(key, None)
