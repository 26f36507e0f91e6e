"""Pods that are made once, however often they are sent: each one has the same name every time."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from kubernetes.client import ApiException, CoreV1Api  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL, SEAL_ANNOTATION

_SUFFIX_LENGTH = 8
"""KubernetesExecutor ends the name of a pod with so many random characters."""

_ANNOTATIONS = ("dag_id", "task_id", "run_id", "map_index", "try_number", SEAL_ANNOTATION)
"""By these, KubernetesExecutor knows whose pod it is, and we know that this Airflow made it for its lease."""


def lease_of(job: Any) -> str | None:
    """The lease whose pod a job of KubernetesExecutor makes; None for a task without a device."""
    return labels_of(job.kube_executor_config).get(LEASE_LABEL)


def run_of(job: Any) -> str:
    """What only one run of a task has, also when the task comes again in the same try, as after a deferral."""
    lease_id = lease_of(job)
    if lease_id is not None:
        return lease_id
    (workload,) = job.command
    return f"{workload.ti.id} {workload.ti.try_number} {workload.token}"


def pod_name(name: str, run: str, ended_pod: str) -> str:
    """The name that a pod has each time that it is sent.

    :param name: given by KubernetesExecutor
    :param run: see `run_of`
    :param ended_pod: the last pod of this run that has ended; empty if there is none
    """
    digest = hashlib.sha256(f"{run} {ended_pod}".encode()).digest()
    return name[:-_SUFFIX_LENGTH] + base64.b32encode(digest).decode().lower()[:_SUFFIX_LENGTH]


def make_pod(api: CoreV1Api, body: Mapping[str, Any], our_label: Mapping[str, Any]) -> Any:
    """Make a pod. If an earlier call made it, or the scheduler that died, take it over.

    :param our_label: a patch by which a scheduler owns a pod
    :raises ApiException: the cluster refuses the pod, or a pod of another task has its name
    """
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    try:
        return api.create_namespaced_pod(namespace, body)
    except ApiException as error:
        if error.status != 409:
            raise
        present = api.list_namespaced_pod(namespace, field_selector=f"metadata.name={name}").items
        if not present or not _is_same(present[0].metadata, body["metadata"]):
            raise
        return api.patch_namespaced_pod(name, namespace, body=our_label)


def labels_of(pod: Any) -> Mapping[str, str]:
    """The labels of a ``V1Pod``, which may be missing."""
    return getattr(getattr(pod, "metadata", None), "labels", None) or {}


def _is_same(present: Any, sent: Mapping[str, Any]) -> bool:
    """Whether a pod is the one that was sent: of the same task, and of the same lease if it has one."""
    annotations, sent_annotations = present.annotations or {}, sent.get("annotations") or {}
    lease_id = (sent.get("labels") or {}).get(LEASE_LABEL)
    return (present.labels or {}).get(LEASE_LABEL) == lease_id and all(
        annotations.get(name) == sent_annotations.get(name) for name in _ANNOTATIONS
    )
