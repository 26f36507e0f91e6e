"""The slices, claims and device classes of a cluster, kept up to date in threads.

A cluster without dynamic resource allocation, or with a version before 1.34, is asked again now and then; nothing else
happens.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kubernetes.client import ApiException, CoreV1Api, ResourceV1Api  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.outage import Outage
from hetero_airflow.engines.kubernetes.slices.allocations import ClaimAllocation, claims_problem, read_allocation
from hetero_airflow.engines.kubernetes.slices.pools import Pools, pool_uses
from hetero_airflow.engines.kubernetes.slices.resource_slices import ResourceSlice, read_slice
from hetero_airflow.engines.kubernetes.watch.informer import CONNECT_S, READ_S, Informer
from hetero_airflow.engines.kubernetes.watch.leased_pods import LeasedPod
from hetero_airflow.model.device import Device

_ASK_AGAIN_S = 300.0
"""A cluster without claims may be upgraded."""

_RETRY_S = 2.0


class DraView:
    """The devices that one cluster publishes as slices, and which claims have them.

    :param where: for log lines, such as ``of the cluster eu``
    :param connect: makes a client
    :param outage: of the cluster
    """

    def __init__(self, where: str, connect: Callable[[], CoreV1Api], outage: Outage | None = None) -> None:
        self._connect = connect
        self._slices = Informer[ResourceSlice](
            f"resource slices {where}", connect, _lists("resource_slice"), read_slice, outage=outage
        )
        self._claims = Informer[ClaimAllocation](
            f"resource claims {where}",
            connect,
            _lists("resource_claim_for_all_namespaces"),
            read_allocation,
            outage=outage,
        )
        self._classes = Informer[str](
            f"device classes {where}",
            connect,
            _lists("device_class"),
            lambda item, _: str(item["metadata"]["name"]),
            outage=outage,
        )
        self._informers = (self._slices, self._claims, self._classes)
        self._pools = Pools()
        self._is_absent, self._has_claims, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._by_pod: tuple[int, dict[str, list[ClaimAllocation]]] = (-1, {})
        self._thread = threading.Thread(target=self._run, name=f"hetero claims {where}", daemon=True)

    def start(self) -> None:
        """Begin to watch; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._has_claims.is_set():
            for informer in self._informers:
                informer.stop()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the slices were read, or the cluster has none. Returns whether that was in time."""
        end = time.monotonic() + timeout_s
        while not self.is_known and time.monotonic() < end:
            self._stopped.wait(0.01)
        return self.is_known

    @property
    def is_known(self) -> bool:
        """Whether the slices were read, can't be read, or do not exist."""
        return self._is_absent.is_set() or all(i.is_listed or i.status is not None for i in self._informers)

    @property
    def changes(self) -> tuple[int, ...]:
        """Other numbers after each change."""
        return (*(informer.changes for informer in self._informers), bool(self._use_problem))

    def devices_by_node(self, pods: Iterable[LeasedPod]) -> Mapping[str, tuple[Device, ...]]:
        """Node → the devices of slices on it. An unchanged pool gives the same devices again.

        :param pods: the pods of leases
        """
        slices = self._slices.values()
        if not slices:
            return {}
        leased = {pod.uid: pod.devices for pod in pods if not pod.is_over}
        classes: Collection[str] | None = frozenset(self._classes.values()) if self._classes.is_listed else None
        uses = pool_uses(self._claims.values(), leased)
        return self._pools.by_node(slices, uses, classes, self._use_problem)

    @property
    def _use_problem(self) -> str:
        """Why it is unknown which devices claims have; empty if it is known."""
        if self._claims.problem is not None:
            return f"the resource claims of the cluster are unknown: {self._claims.problem}"
        return "" if self._claims.is_listed else "the resource claims of the cluster have not been read yet"

    def allocations(self, pod_uid: str) -> list[ClaimAllocation]:
        """The claims of a pod that have devices."""
        changes = self._claims.changes
        if changes != self._by_pod[0]:
            by_pod: dict[str, list[ClaimAllocation]] = {}
            for allocation in self._claims.values():
                for uid in allocation.pod_uids:
                    by_pod.setdefault(uid, []).append(allocation)
            self._by_pod = (changes, by_pod)
        return self._by_pod[1].get(pod_uid, [])

    def claims_problem(self, pod: LeasedPod) -> str:
        """Why the claims of a lease's pod that has begun are not those of its lease; empty if they are, or unknown."""
        has_begun = not pod.is_waiting and not pod.is_over
        if not (has_begun and pod.has_claim) or self._use_problem:
            return ""
        return claims_problem(pod.devices, self.allocations(pod.uid))

    def _run(self) -> None:
        """Ask for the API until the cluster has it, then watch."""
        while not self._stopped.is_set():
            try:
                ResourceV1Api(self._connect().api_client).get_api_resources(_request_timeout=(CONNECT_S, READ_S))
            except Exception as error:  # noqa: BLE001  the other watches report what is wrong with the connection
                is_absent = isinstance(error, ApiException) and error.status == 404
                if is_absent:
                    self._is_absent.set()
                self._stopped.wait(_ASK_AGAIN_S if is_absent else _RETRY_S)
                continue
            self._has_claims.set()
            for informer in self._informers:
                informer.start()
            return


def _lists(name: str) -> Callable[[CoreV1Api], Callable[..., Any]]:
    return lambda api: getattr(ResourceV1Api(api.api_client), f"list_{name}")
