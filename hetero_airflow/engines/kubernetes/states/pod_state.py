"""How a pod stands, in our words: a total table from the words of the scheduler and the kubelet.

Sources: k8s.io/api/core/v1/types.go (PodReason*, conditions), pkg/kubelet/images/types.go, pkg/kubelet/container/
sync_result.go, pkg/kubelet/eviction, pkg/kubelet/lifecycle/predicate.go, "Pod Lifecycle" and "Pod disruption
conditions" in Kubernetes' documentation. A word that is in none of them is logged once, and the pod is UNKNOWN.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from hetero_airflow.errors import shorten
from hetero_airflow.model.plan import Reason, ReasonCode
from hetero_airflow.model.run import RunEnd

MAX_MESSAGE = 1000
"""Characters of a foreign message that are kept."""

_SIGNALLED = (137, 143)
"""Exit codes of SIGKILL and SIGTERM, by which a kubelet ends a container."""

log = logging.getLogger(__name__)


class PodCause(StrEnum):
    """Why a pod stands as it does."""

    GATED = "gated"
    """Held back before scheduling, as Kueue does until there is quota."""
    UNSCHEDULABLE = "unschedulable"
    """No node suits it, or none that does has room."""
    PREEMPTING = "preempting"
    """Pods of less priority are being ended for it."""
    UNASSIGNED = "unassigned"
    """The scheduler has not looked at it yet."""
    STARTING = "starting"
    """It has a node; volumes, networks and images are made ready."""
    IMAGE = "image"
    """Its image can't be fetched."""
    SETTINGS = "settings"
    """Its container can't be made: a secret, a config map, a mount or its command is missing."""
    RUNNING = "running"
    """Its container runs."""
    CRASH_LOOP = "crash_loop"
    """Its container ended, and is started again and again."""
    SUCCEEDED = "succeeded"
    """Its container ended well."""
    FAILED = "failed"
    """Its container ended with an error of its own."""
    OOM_KILLED = "oom_killed"
    """The kernel killed it for want of memory."""
    EVICTED = "evicted"
    """The kubelet, or someone with the right to, put it off its node."""
    PREEMPTED = "preempted"
    """It was ended for a pod of greater priority."""
    NODE_LOST = "node_lost"
    """Its node went away, or does not answer."""
    DEADLINE = "deadline"
    """It ran for longer than it may."""
    REFUSED = "refused"
    """The kubelet did not take it: what the scheduler counted on was gone."""
    DELETED = "deleted"
    """Someone deleted it."""
    UNKNOWN = "unknown"
    """In a word that is not known here."""


@dataclass(frozen=True, slots=True)
class CauseMeaning:
    """What a cause comes to for us."""

    end: RunEnd | None = None
    """None while it has not ended."""
    wait_code: ReasonCode | None = None
    """Why it does not run yet."""


MEANINGS: Mapping[PodCause, CauseMeaning] = MappingProxyType(
    {
        PodCause.GATED: CauseMeaning(wait_code=ReasonCode.RESERVED),
        PodCause.UNSCHEDULABLE: CauseMeaning(wait_code=ReasonCode.BUSY),
        PodCause.PREEMPTING: CauseMeaning(wait_code=ReasonCode.PREEMPTING),
        PodCause.UNASSIGNED: CauseMeaning(wait_code=ReasonCode.SLOTS),
        PodCause.STARTING: CauseMeaning(wait_code=ReasonCode.SLOTS),
        PodCause.IMAGE: CauseMeaning(wait_code=ReasonCode.RUNTIME),
        PodCause.SETTINGS: CauseMeaning(wait_code=ReasonCode.RUNTIME),
        PodCause.RUNNING: CauseMeaning(),
        PodCause.CRASH_LOOP: CauseMeaning(end=RunEnd.FAILED),
        PodCause.SUCCEEDED: CauseMeaning(end=RunEnd.FINISHED),
        PodCause.FAILED: CauseMeaning(end=RunEnd.FAILED),
        PodCause.OOM_KILLED: CauseMeaning(end=RunEnd.FAILED),
        PodCause.EVICTED: CauseMeaning(end=RunEnd.LOST),
        PodCause.PREEMPTED: CauseMeaning(end=RunEnd.PAUSED),
        PodCause.NODE_LOST: CauseMeaning(end=RunEnd.LOST),
        PodCause.DEADLINE: CauseMeaning(end=RunEnd.FAILED),
        PodCause.REFUSED: CauseMeaning(end=RunEnd.LOST),
        PodCause.DELETED: CauseMeaning(end=RunEnd.LOST),
        PodCause.UNKNOWN: CauseMeaning(),
    }
)
"""Of each cause. A pod in a crash loop has not ended for Kubernetes, but its task has."""

WAITING: Mapping[str, PodCause] = MappingProxyType(
    {
        **dict.fromkeys(("ContainerCreating", "PodInitializing"), PodCause.STARTING),
        **dict.fromkeys(
            (
                "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
                "RegistryUnavailable", "SignatureValidationFailed", "ImageVolumeMountFailed",
            ),
            PodCause.IMAGE,
        ),
        **dict.fromkeys(
            (
                "CreateContainerConfigError", "CreateContainerError", "PreCreateHookError", "PreStartHookError",
                "PostStartHookError", "RunContainerError", "CreatePodSandboxError", "ConfigPodSandboxError",
            ),
            PodCause.SETTINGS,
        ),
        "CrashLoopBackOff": PodCause.CRASH_LOOP,
    }
)  # fmt: skip
"""Reason of a container that waits."""

TERMINATED: Mapping[str, PodCause] = MappingProxyType(
    {
        "Completed": PodCause.SUCCEEDED,
        "Error": PodCause.FAILED,
        "OOMKilled": PodCause.OOM_KILLED,
        "DeadlineExceeded": PodCause.DEADLINE,
        "Evicted": PodCause.EVICTED,
        "ContainerStatusUnknown": PodCause.NODE_LOST,
        **dict.fromkeys(("ContainerCannotRun", "StartError", "CreateContainerError"), PodCause.SETTINGS),
    }
)
"""Reason of a container that ended."""

ENDED: Mapping[str, PodCause] = MappingProxyType(
    {
        "Evicted": PodCause.EVICTED,
        "Preempting": PodCause.PREEMPTED,
        "DeadlineExceeded": PodCause.DEADLINE,
        **dict.fromkeys(("NodeLost", "NodeShutdown", "Terminated", "Shutdown"), PodCause.NODE_LOST),
        **dict.fromkeys(
            (
                "UnexpectedAdmissionError", "NodeAffinity", "NodeSelectorMismatching", "NodeName", "NodePorts",
                "NodeUnschedulable", "TaintToleration", "TopologyAffinityError", "ResourceAllocationError", "AppArmor",
                "SysctlForbidden", "PodOSSelectorNodeLabelDoesNotMatch", "PodOSNotSupported", "InvalidNodeInfo",
                "InitContainerRestartPolicyForbidden", "PodFeatureUnsupported", "SupplementalGroupsPolicyNotSupported",
                "PodLevelResourcesNotAdmittedReason", "ContainerRestartRulesForbidden",
            ),
            PodCause.REFUSED,
        ),
    }
)  # fmt: skip
"""Reason of a pod that failed; beside these ``OutOf<resource>``, which the kubelet makes for each resource."""

DISRUPTED: Mapping[str, PodCause] = MappingProxyType(
    {
        "PreemptionByScheduler": PodCause.PREEMPTED,
        "EvictionByEvictionAPI": PodCause.EVICTED,
        "TerminationByKubelet": PodCause.EVICTED,
        "DeletionByTaintManager": PodCause.NODE_LOST,
        "DeletionByPodGC": PodCause.NODE_LOST,
        "DeletionByDeviceTaintManager": PodCause.EVICTED,
    }
)
"""Reason of the condition ``DisruptionTarget``."""

SCHEDULED: Mapping[str, PodCause] = MappingProxyType(
    {
        "Unschedulable": PodCause.UNSCHEDULABLE,
        "SchedulingGated": PodCause.GATED,
        "SchedulerError": PodCause.UNSCHEDULABLE,
    }
)
"""Reason of the condition ``PodScheduled`` while it is false."""


@dataclass(frozen=True, slots=True)
class PodState:
    """How a pod stands, and what was said of it."""

    cause: PodCause
    message: str = ""
    """The scheduler's or the kubelet's own, shortened."""
    exit_code: int | None = None
    """Of the container that had the devices."""
    node: str | None = None

    @property
    def end(self) -> RunEnd | None:
        """How its run ended; None while it has not."""
        return MEANINGS[self.cause].end

    def reason(self, asked: str) -> Reason | None:
        """Why it does not run yet; None once it does."""
        code = MEANINGS[self.cause].wait_code
        if code is None:
            return None
        if self.cause is PodCause.UNSCHEDULABLE and self.message and "Insufficient" not in self.message:
            code = ReasonCode.LABELS  # no node is only full: they are of another kind, tainted or cordoned
        return Reason(code, asked, self.message or self.cause.value)


def pod_state(pod: Any, container: str = "base") -> PodState:
    """How a pod of the API stands; None for a pod that is not there any more.

    :param pod: a ``V1Pod``
    :param container: the one that has the devices; where there is none of that name, the first

    >>> pod_state(None)
    PodState(cause=<PodCause.DELETED: 'deleted'>, message='', exit_code=None, node=None)
    """
    if pod is None:
        return PodState(PodCause.DELETED)
    status, node = pod.status, getattr(pod.spec, "node_name", None)
    phase = getattr(status, "phase", None) or "Pending"
    own = _container_state(status, container)
    ended = getattr(own, "terminated", None)
    exit_code = getattr(ended, "exit_code", None)
    cause, message = _read(pod, status, phase, own, ended)
    return PodState(cause, _shortened(message), exit_code, node)


def _read(pod: Any, status: Any, phase: str, own: Any, ended: Any) -> tuple[PodCause, str]:
    if phase == "Succeeded":
        return PodCause.SUCCEEDED, ""
    disrupted = _condition(status, "DisruptionTarget", "True")
    if phase == "Failed":
        return _failed(pod, status, ended, disrupted)
    if phase == "Unknown" or getattr(status, "reason", None) == "NodeLost":
        return PodCause.NODE_LOST, status.message or ""
    if disrupted is not None:
        return _cause_of("a disruption", disrupted.reason, DISRUPTED), disrupted.message or ""
    if pod.metadata is not None and pod.metadata.deletion_timestamp is not None:
        return PodCause.DELETED, ""
    if phase == "Pending":
        return _pending(status)
    if phase != "Running":
        return _cause_of("a pod's phase", phase, {}), ""
    if ended is not None:
        return _ended(ended)
    waiting = getattr(own, "waiting", None)
    if waiting is not None:
        return _cause_of("a container that waits", waiting.reason, WAITING), waiting.message or ""
    return PodCause.RUNNING, ""


def _failed(pod: Any, status: Any, ended: Any, disrupted: Any) -> tuple[PodCause, str]:
    reason = status.reason or ""
    if reason.startswith("OutOf"):
        return PodCause.REFUSED, status.message or reason
    if reason:
        cause = _cause_of("a pod that failed", reason, ENDED)
        if cause is PodCause.EVICTED and disrupted is not None:
            cause = _cause_of("a disruption", disrupted.reason, DISRUPTED)
        return cause, status.message or reason
    if disrupted is not None:
        return _cause_of("a disruption", disrupted.reason, DISRUPTED), disrupted.message or ""
    if ended is not None and ended.exit_code != 0:
        cause, message = _ended(ended)
        return PodCause.DELETED if cause is PodCause.FAILED and _is_killed(pod, ended) else cause, message
    for other in _states(status):  # the pod failed for another container, such as one that prepares it
        if getattr(other, "terminated", None) is not None and other.terminated.exit_code != 0:
            return _ended(other.terminated)
    return PodCause.FAILED, status.message or ""


def _is_killed(pod: Any, ended: Any) -> bool:
    """Whether a container ended since its pod was told to, and not by itself before.

    The API gives whole seconds; within the same one the kubelet's signal shows.
    """
    metadata = pod.metadata
    if metadata is None or metadata.deletion_timestamp is None or ended.finished_at is None:
        return False
    told = metadata.deletion_timestamp - timedelta(seconds=metadata.deletion_grace_period_seconds or 0)
    return bool(ended.finished_at > told or (ended.finished_at == told and ended.exit_code in _SIGNALLED))


def _ended(ended: Any) -> tuple[PodCause, str]:
    if ended.reason is None:
        cause = PodCause.SUCCEEDED if ended.exit_code == 0 else PodCause.FAILED
    else:
        cause = _cause_of("a container that ended", ended.reason, TERMINATED)
    is_failure = cause is PodCause.SETTINGS or (cause is PodCause.SUCCEEDED and ended.exit_code != 0)
    return (PodCause.FAILED if is_failure else cause), ended.message or ""


def _pending(status: Any) -> tuple[PodCause, str]:
    for state in _states(status):
        waiting = getattr(state, "waiting", None)
        if waiting is not None and waiting.reason:
            cause = _cause_of("a container that waits", waiting.reason, WAITING)
            if cause is not PodCause.STARTING:
                return cause, waiting.message or waiting.reason
    placed = _condition(status, "PodScheduled")
    if placed is None:
        return PodCause.UNASSIGNED, ""
    if placed.status == "True":
        return PodCause.STARTING, ""
    if getattr(status, "nominated_node_name", None):
        return PodCause.PREEMPTING, placed.message or ""
    return _cause_of("a pod that is not scheduled", placed.reason, SCHEDULED), placed.message or ""


def _condition(status: Any, kind: str, value: str | None = None) -> Any:
    conditions: Iterable[Any] = getattr(status, "conditions", None) or ()
    return next((one for one in conditions if one.type == kind and value in (None, one.status)), None)


def _container_state(status: Any, container: str) -> Any:
    found = getattr(status, "container_statuses", None) or []
    return next((one.state for one in found if one.name == container), found[0].state if found else None)


def _states(status: Any) -> Iterator[Any]:
    for name in ("init_container_statuses", "container_statuses"):
        for one in getattr(status, name, None) or ():
            if one.state is not None:
                yield one.state


def _cause_of(what: str, reason: str | None, table: Mapping[str, PodCause]) -> PodCause:
    cause = table.get(reason or "")
    if cause is None:
        _warn_once(what, shorten(reason))
        return PodCause.UNKNOWN
    return cause


@lru_cache(maxsize=256)
def _warn_once(what: str, reason: str) -> None:
    log.warning("Kubernetes gives %s the reason %s, which is not known here: taken as unknown.", what, reason)


def _shortened(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."
