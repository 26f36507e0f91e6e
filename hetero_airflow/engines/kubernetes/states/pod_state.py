"""How a pod stands. A reason that the tables in `causes` lack is logged once, and the pod is UNKNOWN."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from hetero_airflow.engines.kubernetes.states.causes import (
    COMMAND_FAULT,
    DISRUPTED,
    ENDED,
    ENDS,
    SCHEDULED,
    TERMINATED,
    WAIT_CODES,
    WAITING,
    PodCause,
)
from hetero_airflow.errors import shorten
from hetero_airflow.model.plan import Reason, ReasonCode
from hetero_airflow.model.run import RunEnd

MAX_MESSAGE = 1000
"""Number of characters of a foreign message that are kept."""

_SIGNALLED = (137, 143)
"""Exit codes of SIGKILL and SIGTERM, with which a kubelet ends a container."""

_CLAIM_TO_COME = ("ResourceClaim not created yet", "to create the resourceclaim")
"""Words of Kubernetes' scheduler for a claim that does not exist yet: dynamic-resource-allocation/resourceclaim/
claim.go, `ErrClaimNotFound`, and before Kubernetes 1.28."""

_BUSY = ("Insufficient", "cannot allocate all claims", "resourceclaim in use", *_CLAIM_TO_COME)
"""Words of Kubernetes' scheduler for resources and claimed devices that others have, and for claims to come."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodState:
    """The state of a pod, with Kubernetes' message about it."""

    cause: PodCause
    message: str = ""
    """The message of the scheduler or the kubelet, shortened."""
    exit_code: int | None = None
    """Exit code of the container that had the devices."""
    node: str | None = None

    @property
    def may_lack_claim(self) -> bool:
        """Whether a pod with a claim may still wait for it; the scheduler may not look at it before."""
        return self.cause is PodCause.UNASSIGNED or any(map(self.message.__contains__, _CLAIM_TO_COME))

    @property
    def end(self) -> RunEnd | None:
        """How its run ended; None if it has not."""
        return ENDS.get(self.cause)

    def reason(self, asked: str) -> Reason | None:
        """Why it does not run yet; None once it runs."""
        code = WAIT_CODES.get(self.cause)
        if code is None:
            return None
        if self.cause is PodCause.UNSCHEDULABLE and self.message and not any(map(self.message.__contains__, _BUSY)):
            code = ReasonCode.LABELS  # no node is just full: they are of another kind, tainted or cordoned
        return Reason(code, asked, self.message or self.cause.value)


def pod_state(pod: Any, container: str = "base") -> PodState:
    """The state of a pod of the API; None stands for a deleted pod.

    :param pod: a ``V1Pod``
    :param container: name of the container that has the devices; without such a one, the first container

    >>> pod_state(None)
    PodState(cause=<PodCause.DELETED: 'deleted'>, message='', exit_code=None, node=None)
    """
    if pod is None:
        return PodState(PodCause.DELETED)
    status, node = pod.status, getattr(pod.spec, "node_name", None)
    state = _container_state(status, container)
    terminated = getattr(state, "terminated", None)
    cause, message = _cause_and_message(pod, status, state, terminated)
    return PodState(cause, _shortened(message), getattr(terminated, "exit_code", None), node)


def _cause_and_message(pod: Any, status: Any, state: Any, terminated: Any) -> tuple[PodCause, str]:
    phase = getattr(status, "phase", None) or "Pending"
    disruption = _condition(status, "DisruptionTarget", "True")
    if phase == "Succeeded":
        return PodCause.SUCCEEDED, ""
    if phase == "Failed":
        return _failed(pod, status, terminated, disruption)
    if phase == "Unknown" or getattr(status, "reason", None) == "NodeLost":
        return PodCause.NODE_LOST, status.message or ""
    if disruption is not None:
        return _disrupted(disruption)
    if pod.metadata is not None and pod.metadata.deletion_timestamp is not None:
        return PodCause.DELETED, ""
    if phase == "Pending":
        return _pending(status)
    return _running(state, terminated) if phase == "Running" else (_cause_of("a pod's phase", phase, {}), "")


def _running(state: Any, terminated: Any) -> tuple[PodCause, str]:
    if terminated is not None:
        return _terminated(terminated)
    waiting = getattr(state, "waiting", None)
    if waiting is not None:
        return _cause_of("a waiting container", waiting.reason, WAITING), waiting.message or ""
    return PodCause.RUNNING, ""


def _failed(pod: Any, status: Any, terminated: Any, disruption: Any) -> tuple[PodCause, str]:
    reason = status.reason or ""
    if reason.startswith("OutOf"):
        return PodCause.REFUSED, status.message or reason
    if reason:
        cause = _cause_of("a failed pod", reason, ENDED)
        if cause is PodCause.EVICTED and disruption is not None:
            cause, _ = _disrupted(disruption)
        return cause, status.message or reason
    if disruption is not None:
        return _disrupted(disruption)
    if terminated is not None and terminated.exit_code != 0:
        cause, message = _terminated(terminated)
        is_killed = cause is PodCause.FAILED and _is_killed(pod, terminated)
        return (PodCause.DELETED if is_killed else cause), message
    for state in _states(status):  # the pod failed because of another container, such as an init container
        if getattr(state, "terminated", None) is not None and state.terminated.exit_code != 0:
            return _terminated(state.terminated)
    return PodCause.FAILED, status.message or ""


def _disrupted(disruption: Any) -> tuple[PodCause, str]:
    return _cause_of("a disruption", disruption.reason, DISRUPTED), disruption.message or ""


def _is_killed(pod: Any, terminated: Any) -> bool:
    """Whether the deletion of its pod ended a container, so that it did not end by itself before.

    The API gives whole seconds. Within the same second, the kubelet's signal decides.
    """
    metadata = pod.metadata
    if metadata is None or metadata.deletion_timestamp is None or terminated.finished_at is None:
        return False
    deleted_at = metadata.deletion_timestamp - timedelta(seconds=metadata.deletion_grace_period_seconds or 0)
    if terminated.finished_at == deleted_at:
        return terminated.exit_code in _SIGNALLED
    return bool(terminated.finished_at > deleted_at)


def _terminated(terminated: Any) -> tuple[PodCause, str]:
    if terminated.reason is None:
        cause = PodCause.SUCCEEDED if terminated.exit_code == 0 else PodCause.FAILED
    else:
        cause = _cause_of("a container that ended", terminated.reason, TERMINATED)
    message = terminated.message or ""
    if terminated.reason == "StartError" and message and not COMMAND_FAULT.search(message):
        return PodCause.NODE_BROKEN, message
    is_failure = cause is PodCause.SETTINGS or (cause is PodCause.SUCCEEDED and terminated.exit_code != 0)
    return (PodCause.FAILED if is_failure else cause), message


def _pending(status: Any) -> tuple[PodCause, str]:
    for state in _states(status):
        waiting = getattr(state, "waiting", None)
        if waiting is not None and waiting.reason:
            cause = _cause_of("a waiting container", waiting.reason, WAITING)
            if cause is not PodCause.STARTING:
                return cause, waiting.message or waiting.reason
    scheduled = _condition(status, "PodScheduled")
    if scheduled is None:
        return PodCause.UNASSIGNED, ""
    if scheduled.status == "True":
        return PodCause.STARTING, ""
    if getattr(status, "nominated_node_name", None):
        return PodCause.PREEMPTING, scheduled.message or ""
    return _cause_of("a pod that is not scheduled", scheduled.reason, SCHEDULED), scheduled.message or ""


def _condition(status: Any, kind: str, value: str | None = None) -> Any:
    conditions: Iterable[Any] = getattr(status, "conditions", None) or ()
    return next((c for c in conditions if c.type == kind and value in (None, c.status)), None)


def _container_state(status: Any, container: str) -> Any:
    containers = getattr(status, "container_statuses", None) or []
    return next((c.state for c in containers if c.name == container), containers[0].state if containers else None)


def _states(status: Any) -> Iterator[Any]:
    for name in ("init_container_statuses", "container_statuses"):
        for container in getattr(status, name, None) or ():
            if container.state is not None:
                yield container.state


def _cause_of(subject: str, reason: str | None, table: Mapping[str, PodCause]) -> PodCause:
    cause = table.get(reason or "")
    if cause is None:
        _warn_once(subject, shorten(reason))
        return PodCause.UNKNOWN
    return cause


@lru_cache(maxsize=256)
def _warn_once(subject: str, reason: str) -> None:
    log.warning("Kubernetes gives %s the unknown reason %s. The pod's state counts as unknown.", subject, reason)


def _shortened(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."
