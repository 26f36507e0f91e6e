"""Deletes pods in a thread of its own, so that a slow API server does not stop the scheduler's loop."""

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
"""After which a pod that is still there is told again."""

_TIMEOUT_S = (5.0, 10.0)

log = logging.getLogger(__name__)


class PodDeleter:
    """Tells pods to end.

    :param connect: makes a client; called again after a failure
    """

    def __init__(self, connect: Callable[[], CoreV1Api]) -> None:
        self._connect = connect
        self._queue: queue.SimpleQueue[tuple[LeasedPod, int | None] | None] = queue.SimpleQueue()
        self._told: dict[tuple[str, int | None], float] = {}
        self._thread = threading.Thread(target=self._run, name="hetero pod deletion", daemon=True)
        self._problem = ""

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop once what was told is done; does not wait for it."""
        self._queue.put(None)

    def delete(self, pod: LeasedPod, grace_s: int | None = None) -> None:
        """Tell a pod to end, unless it was told a moment ago.

        :param grace_s: before its processes are killed; None: what the pod itself says. Never 0, by which the API would
            forget the pod though its processes may still run.
        """
        now, key = time.monotonic(), (pod.uid, grace_s)
        if now - self._told.get(key, float("-inf")) < DELETE_AGAIN_AFTER_S:
            return
        self._told = {one: at for one, at in self._told.items() if now - at < DELETE_AGAIN_AFTER_S} | {key: now}
        self._queue.put((pod, grace_s))

    def _run(self) -> None:
        api: CoreV1Api | None = None
        while (told := self._queue.get()) is not None:
            pod, grace_s = told
            try:
                api = api or self._connect()
                options = V1DeleteOptions(grace_period_seconds=grace_s, preconditions=V1Preconditions(uid=pod.uid))
                api.delete_namespaced_pod(pod.name, pod.namespace, body=options, _request_timeout=_TIMEOUT_S)
                self._problem = ""
            except Exception as error:  # noqa: BLE001  whatever the client raises: the pod is told again later
                if isinstance(error, ApiException) and error.status in (404, 409):
                    continue  # it is gone; another has its name
                api = None
                text = f"{error.status} {error.reason}" if isinstance(error, ApiException) else type(error).__name__
                if text != self._problem:
                    log.warning("Pod %s/%s can't be deleted now: %s", pod.namespace, pod.name, text)
                self._problem = text
                self._told.pop((pod.uid, grace_s), None)
