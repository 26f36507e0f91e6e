"""What the end of a pod tells the recovery rules."""

from __future__ import annotations

from hetero_airflow.engines.kubernetes.states.causes import PodCause
from hetero_airflow.engines.kubernetes.states.pod_state import PodState
from hetero_airflow.recovery.evidence import Evidence

_GONE = frozenset({PodCause.EVICTED, PodCause.NODE_LOST, PodCause.REFUSED, PodCause.DELETED})


def pod_evidence(state: PodState) -> Evidence:
    """What is known of how the run in a pod ended.

    >>> from hetero_airflow.recovery.classification import classify
    >>> classify(pod_evidence(PodState(PodCause.NODE_LOST))).failure_class.value
    'lost_worker'
    """
    if state.cause is PodCause.PREEMPTED:
        return Evidence(notice=f"Kubernetes ended its pod for another: {state.message or 'of greater priority'}")
    if state.cause is PodCause.OOM_KILLED:
        return Evidence(exit_code=state.exit_code, oom_kills=1)
    if state.cause in _GONE:
        return Evidence(is_gone=True)
    return Evidence(exit_code=state.exit_code, log=state.message)
