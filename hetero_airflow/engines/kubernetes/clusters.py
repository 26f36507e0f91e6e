"""The clusters that are configured for one engine, and what they report."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetero_airflow.engines.engine import LeaseStatus, WorkerChanges
from hetero_airflow.engines.kubernetes.adapter import ClusterAdapter
from hetero_airflow.engines.kubernetes.leasing_executor import LeasingKubernetesExecutor
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.worker import Worker

FIRST_READ_TIMEOUT_S = 5.0
"""The scheduler's loop waits this long for the first reading of the clusters, then goes on without it."""

log = logging.getLogger(__name__)


class Clusters:
    """All clusters of an engine, whose workers have no agents. No call but `watch` blocks.

    :param executor: for the cluster of ``[kubernetes_executor]``
    """

    def __init__(self, executor: LeasingKubernetesExecutor) -> None:
        self.adapters: Sequence[ClusterAdapter] = ()
        self._executor = executor
        self._workers: Callable[[], Mapping[str, Worker]] = dict

    def open(self, adapters: Sequence[ClusterAdapter], workers: Callable[[], Mapping[str, Worker]]) -> None:
        """Report on these clusters from now on.

        :param workers: worker id → worker, as in the last snapshot
        """
        self.adapters, self._workers = adapters, workers

    def watch(self) -> None:
        """Start the threads of all clusters, and wait some seconds for their first readings."""
        end = time.monotonic() + FIRST_READ_TIMEOUT_S
        for adapter in self.adapters:
            adapter.start()
        for adapter in self.adapters:
            in_time = adapter.view.wait(max(0.0, end - time.monotonic()))
            if not in_time and adapter.view.problem is not None:
                log.warning("A cluster was not read within %g s: %s.", FIRST_READ_TIMEOUT_S, adapter.view.problem)

    def adapter_at(self, worker_id: str) -> ClusterAdapter | None:
        """The cluster of a node; None if no configured cluster has it."""
        return next((adapter for adapter in self.adapters if adapter.has_worker(worker_id)), None)

    def poll(self) -> WorkerChanges:
        """The changes to the nodes."""
        workers, now = self._workers(), time.monotonic()
        changes = [adapter.poll(workers, now) for adapter in self.adapters]
        return WorkerChanges(
            tuple(worker for change in changes for worker in change.seen),
            tuple(id_ for change in changes for id_ in change.alive),
            tuple(id_ for change in changes for id_ in change.lost),
        )

    def follow(self, key: Any, lease: Lease) -> None:
        """Follow the pod of a lease that another scheduler made, and no earlier or later pod of the same task."""
        adapter = self.adapter_at(lease.worker_id)
        if adapter is not None:
            adapter.follow(key, lease.id)

    def status(self, lease_id: str) -> LeaseStatus:
        """What the cluster of a lease reports about its pod."""
        for adapter in self.adapters:
            if (status := adapter.status(lease_id)) is not None:
                return status
        return LeaseStatus()

    def task_log(self, task_instance: Any, try_number: int) -> tuple[list[str], list[str]]:
        """The log of a task's pod so far, from the cluster of ``[kubernetes_executor]``."""
        return self._executor.get_task_log(task_instance, try_number)
