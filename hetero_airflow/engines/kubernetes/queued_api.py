"""The part of a client that KubernetesExecutor uses for its pods. The calls are made later, in another thread."""

from collections.abc import Callable
from typing import Any

from kubernetes.client import CoreV1Api, V1DeleteOptions, V1Preconditions  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.calls import ClusterCalls
from hetero_airflow.engines.kubernetes.clients import CALL_LIMIT_S, one_try_client
from hetero_airflow.engines.kubernetes.watch.leased_pods import LeasedPod

DELETE_AGAIN_AFTER_S = 30.0
"""A pod that still exists after this time is deleted again."""


class QueuedApi:
    """Has the names of `CoreV1Api`. A deletion or a change of labels is repeated until the cluster answers.

    :param connect: makes a client, for calls that its user must wait for
    """

    def __init__(self, calls: ClusterCalls, connect: Callable[[], CoreV1Api]) -> None:
        self._calls, self._connect = calls, connect
        self.reconnect()

    def reconnect(self) -> None:
        """Read the cluster's address and the credentials again, for the calls that its user waits for.

        :raises ConnectionError: they can't be read
        """
        try:
            self.api_client = one_try_client(self._connect(), CALL_LIMIT_S).api_client
        except Exception as error:  # files, credential plugins and TLS raise many types
            raise ConnectionError(f"no client can be made: {error}") from error

    def delete_namespaced_pod(self, name: str, namespace: str, body: Any = None, **arguments: Any) -> None:
        """Delete a pod, unless that was done recently."""
        grace_s = None if body is None else body.grace_period_seconds
        self._calls.put(
            ("delete", namespace, name, grace_s),
            lambda api: api.delete_namespaced_pod(name, namespace, body=body, **arguments),
            is_repeated=True,
            again_after_s=DELETE_AGAIN_AFTER_S,
        )

    def patch_namespaced_pod(self, name: str, namespace: str, body: Any, **arguments: Any) -> None:
        """Change labels of a pod."""
        self._calls.put(
            ("patch", namespace, name, str(body)),
            lambda api: api.patch_namespaced_pod(name, namespace, body=body, **arguments),
            is_repeated=True,
        )

    def delete(self, pod: LeasedPod, grace_s: int | None = None) -> None:
        """Delete a pod, and no other one of its name.

        :param grace_s: time before its processes are killed; None for the pod's own. Never 0: the API would forget the
            pod while its processes may still run.
        """
        options = V1DeleteOptions(grace_period_seconds=grace_s, preconditions=V1Preconditions(uid=pod.uid))
        self.delete_namespaced_pod(pod.name, pod.namespace, options)
