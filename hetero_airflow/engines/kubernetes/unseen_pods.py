"""The pods that were sent to a cluster and that the watch has not shown: they may exist, or be on their way."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from kubernetes.client import CoreV1Api  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.calls import ClusterCalls

ASK_AFTER_S = 10.0
"""The cluster is asked for a pod that the watch has not shown for this time."""

_ASK_AGAIN_AFTER_S = 5.0


class UnseenPods:
    """Only the scheduler's loop may use it.

    :param calls: to the cluster
    :param find: asks a cluster for the pods of a lease
    """

    def __init__(
        self,
        calls: ClusterCalls,
        find: Callable[[CoreV1Api, str], Sequence[Any]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls, self._find, self._now = calls, find, now
        self._sent: dict[str, tuple[str, str]] = {}
        """Lease → namespace and name of its pod."""
        self._made_at: dict[str, float] = {}
        """Lease → when the cluster said that it has the pod."""
        self._absent: set[str] = set()
        """Leases without a pod, by the cluster's answer."""

    def note_sent(self, lease_id: str, namespace: str, name: str) -> None:
        """From now on, the cluster may have that pod."""
        self._sent[lease_id] = (namespace, name)
        self._absent.discard(lease_id)

    def note_made(self, lease_id: str) -> None:
        """The cluster has the pod."""
        self._made_at[lease_id] = self._now()
        self._absent.discard(lease_id)

    def note_refused(self, lease_id: str) -> None:
        """The cluster has refused the pod."""
        self.forget(lease_id)
        self._absent.add(lease_id)

    def is_made(self, lease_id: str) -> bool:
        """Whether the cluster has said that it has the pod."""
        return lease_id in self._made_at

    def sent(self, lease_id: str) -> tuple[str, str] | None:
        """Namespace and name of the pod that was sent for a lease; None if there was none."""
        return self._sent.get(lease_id)

    def forget(self, lease_id: str) -> None:
        """The lease is over."""
        self._sent.pop(lease_id, None)
        self._made_at.pop(lease_id, None)
        self._absent.discard(lease_id)

    def is_absent(self, lease_id: str, since: float) -> bool:
        """Whether the cluster has said that a lease has no pod. If not, it is asked.

        :param since: when a pod may have appeared
        """
        if lease_id in self._absent:
            return True
        if self._now() - self._made_at.get(lease_id, since) >= ASK_AFTER_S:

            def note(answer: Any) -> None:
                if answer == []:
                    self._absent.add(lease_id)

            self._calls.put(
                ("find", lease_id), lambda api: self._find(api, lease_id), note, again_after_s=_ASK_AGAIN_AFTER_S
            )
        return False
