"""What the recovery rules can learn from a pod that failed, or that a cluster refused."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException
from kubernetes.client import ApiException  # type: ignore[import-untyped]

from hetero_airflow.engines.kubernetes.states.causes import MEANINGS, PodCause
from hetero_airflow.engines.kubernetes.states.pod_state import PodState
from hetero_airflow.recovery.evidence import Evidence

_LOST_CAUSES = frozenset({PodCause.EVICTED, PodCause.NODE_LOST, PodCause.REFUSED, PodCause.DELETED})


@contextmanager
def named_quota() -> Iterator[None]:
    """Within the context, a pod that a quota refuses fails with that cause."""
    try:
        yield
    except ApiException as error:
        if error.status != 403 or "exceeded quota" not in str(error.body):
            raise
        message = str(json.loads(error.body)["message"])
        failure = AirflowException(f"The cluster's quota refuses the pod: {message}")
        failure.evidence = Evidence(start_problem=message)  # type: ignore[attr-defined]
        raise failure from error


def pod_evidence(state: PodState) -> Evidence:
    """What the recovery rules can learn from how a pod ended.

    >>> from hetero_airflow.recovery.classification import classify
    >>> classify(pod_evidence(PodState(PodCause.NODE_LOST))).failure_class.value
    'lost_worker'
    """
    if MEANINGS[state.cause].wait_code is not None:
        return Evidence(start_problem=state.message or state.cause.value)
    if state.cause is PodCause.PREEMPTED:
        return Evidence(notice=f"Kubernetes ended its pod for another one: {state.message or 'of higher priority'}")
    if state.cause is PodCause.OOM_KILLED:
        return Evidence(exit_code=state.exit_code, oom_kills=1)
    if state.cause in _LOST_CAUSES:
        return Evidence(is_gone=True)
    return Evidence(exit_code=state.exit_code, log=state.message)
