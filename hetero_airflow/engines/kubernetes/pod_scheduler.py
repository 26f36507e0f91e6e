"""Airflow's pod scheduler, with a watch that outlives outages."""

import time
from collections.abc import Callable
from typing import Any

from airflow.providers.cncf.kubernetes.executors.kubernetes_executor_utils import (
    AirflowKubernetesScheduler,
    KubernetesJobWatcher,
)
from kubernetes.client import CoreV1Api  # type: ignore[import-untyped]
from urllib3.exceptions import ReadTimeoutError

from hetero_airflow.engines.kubernetes.clients import one_try_client, probe

Connect = Callable[[], CoreV1Api]

_MAX_DELAY_S = 10.0
_REFUSED_DELAY_S = 15.0


class LeasingPodScheduler(AirflowKubernetesScheduler):
    """Watches the pods of one cluster.

    :param make_connect: gives the function that connects to it in the process of a watch
    """

    def __init__(self, make_connect: Callable[[], Connect], **arguments: Any) -> None:
        self._make_connect = make_connect
        super().__init__(**arguments)

    def _make_kube_watcher(self, namespace: str) -> KubernetesJobWatcher:
        watcher = PodWatcher(
            self._make_connect(),
            watcher_queue=self.watcher_queue,
            namespace=namespace,
            # The watch begins with all present pods. Airflow's `ResourceVersion` mixes clusters up.
            resource_version="0",
            scheduler_job_id=self.scheduler_job_id,
            kube_config=self.kube_config,
            supports_task_instance_uuid=self.supports_task_instance_uuid,
            team_name=self.team_name,
        )
        watcher.start()
        return watcher


class PodWatcher(KubernetesJobWatcher):
    """Watches in a process of its own. In an outage it waits, without a word: `Informer` logs the outage.

    Airflow's own watcher ends with a traceback, and the scheduler forks another one, again and again.
    """

    def __init__(self, connect: Connect, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._connect = connect
        self._versions: dict[str, str] = {}
        """Id of a pod → the version of it that was reported last."""

    def run(self) -> None:
        """Watch until the process is ended, or the credentials are refused: the next process gets new ones."""
        delay_s = 0.0
        while True:
            try:
                client = self._connect()
                probe(one_try_client(client))  # `_run` logs that it begins
                delay_s = 0.0
                self._watch(client)
            except Exception as error:  # noqa: BLE001  the client, its credential plugins and TLS raise many types
                if getattr(error, "status", None) == 401:
                    time.sleep(_REFUSED_DELAY_S)
                    return
                self.resource_version = "0"  # with all pods that are there: some may have ended meanwhile
                delay_s = min(max(1.0, 2 * delay_s), _MAX_DELAY_S)
                time.sleep(delay_s)

    def _watch(self, client: CoreV1Api) -> None:
        while True:
            try:
                self.resource_version = self._run(
                    client, self.resource_version, self.scheduler_job_id, self.kube_config
                )
            except ReadTimeoutError:
                time.sleep(1)

    def process_status(
        self,
        pod_name: str,
        namespace: str,
        status: str,
        annotations: dict[str, str],
        resource_version: str,
        event: Any,
    ) -> None:
        """Report a pod, unless it is as it was: after an outage all pods come again."""
        uid = event["object"].metadata.uid
        if event["type"] == "DELETED":
            self._versions.pop(uid, None)
        elif self._versions.get(uid) == resource_version:
            return
        else:
            self._versions[uid] = resource_version
        super().process_status(pod_name, namespace, status, annotations, resource_version, event)
