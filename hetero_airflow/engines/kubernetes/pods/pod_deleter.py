"""Deletes pods in a separate thread, so that a slow API server does not stop the scheduler's loop."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from kubernetes.client import (  # type: ignore[import-untyped]
    ApiException,
    CoreV1Api,
    V1DeleteOptions,
    V1Preconditions,
)

from hetero_airflow.engines.kubernetes.watch.leased_pods import LeasedPod

DELETE_AGAIN_AFTER_S = 30.0
"""A pod that still exists after this time is deleted again."""

_TIMEOUT_S = (5.0, 10.0)

log = logging.getLogger(__name__)


class PodDeleter:
    """Deletes pods.

    :param connect: makes a client; called again after a failure
    """

    def __init__(self, connect: Callable[[], CoreV1Api]) -> None:
        self._connect = connect
        self._queue: queue.SimpleQueue[tuple[LeasedPod, int | None] | None] = queue.SimpleQueue()
        self._deleted_at: dict[tuple[str, int | None], float] = {}
        self._thread = threading.Thread(target=self._run, name="hetero pod deletion", daemon=True)
        self._problem = ""

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the queued deletions; does not wait."""
        self._queue.put(None)

    def delete(self, pod: LeasedPod, grace_s: int | None = None) -> None:
        """Delete a pod, unless that was done recently.

        :param grace_s: time before its processes are killed; None for the pod's own. Never 0: the API would forget the
            pod while its processes may still run.
        """
        now, key = time.monotonic(), (pod.uid, grace_s)
        if now - self._deleted_at.get(key, float("-inf")) < DELETE_AGAIN_AFTER_S:
            return
        self._deleted_at = {k: at for k, at in self._deleted_at.items() if now - at < DELETE_AGAIN_AFTER_S} | {key: now}
        self._queue.put((pod, grace_s))

    def _run(self) -> None:
        api: CoreV1Api | None = None
        while (deletion := self._queue.get()) is not None:
            pod, grace_s = deletion
            try:
                api = api or self._connect()
                options = V1DeleteOptions(grace_period_seconds=grace_s, preconditions=V1Preconditions(uid=pod.uid))
                api.delete_namespaced_pod(pod.name, pod.namespace, body=options, _request_timeout=_TIMEOUT_S)
                self._problem = ""
            except Exception as error:  # noqa: BLE001  the client raises many types; the pod is deleted again later
                if isinstance(error, ApiException) and error.status in (404, 409):
                    continue  # it is gone, or another pod has its name
                api = None
                text = f"{error.status} {error.reason}" if isinstance(error, ApiException) else type(error).__name__
                if text != self._problem:
                    log.warning("Pod %s/%s can't be deleted now: %s", pod.namespace, pod.name, text)
                self._problem = text
                self._deleted_at.pop((pod.uid, grace_s), None)
