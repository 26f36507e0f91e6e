"""The states of pods; their tables have every reason of Kubernetes 1.36 that a pod's status can show."""

import logging
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client

from hetero_airflow.engines.kubernetes.states.causes import (
    DISRUPTED,
    ENDED,
    ENDS,
    SCHEDULED,
    TERMINATED,
    WAIT_CODES,
    WAITING,
    PodCause,
)
from hetero_airflow.engines.kubernetes.states.pod_state import pod_state
from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.model.run import RunEnd

FULL = "0/5 nodes are available: 2 Insufficient nvidia.com/gpu, 3 node(s) didn't match Pod's node affinity/selector."
WRONG = "0/5 nodes are available: 5 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate."


def a_pod(phase="Pending", state=None, sidecars=(), init=(), conditions=(), deleted=False, **status):
    statuses = [*([("base", state)] if state else []), *sidecars]
    body = {
        "metadata": {"name": "p", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})},
        "spec": {"containers": [{"name": "base"}], "nodeName": "n1"},
        "status": {
            "phase": phase,
            "conditions": [{"type": kind, "status": value, **fields} for kind, value, fields in conditions],
            "containerStatuses": [_status(*status) for status in statuses],
            "initContainerStatuses": [_status(*status) for status in init],
            **status,
        },
    }
    return client.ApiClient()._ApiClient__deserialize(body, "V1Pod")


def _status(name, state):
    return {"name": name, "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def unscheduled(reason, message=""):
    return [("PodScheduled", "False", {"reason": reason, "message": message})]


def waiting(reason, message="m"):
    return {"waiting": {"reason": reason, "message": message}}


def terminated(code, reason=None, message=None):
    texts = {"reason": reason, "message": message}
    return {"terminated": {"exitCode": code, **{name: text for name, text in texts.items() if text}}}


SCHEDULED_WELL = [("PodScheduled", "True", {})]
KILLED = terminated(137, "Error")
_NOT_STARTED = "failed to create containerd task: failed to create shim task: OCI runtime create failed"
WRONG_COMMAND = f'{_NOT_STARTED}: unable to start container process: exec: "trian": executable file not found in $PATH'
BROKEN_NODE = f"{_NOT_STARTED}: error running hook #0: nvidia-container-cli: driver/library version mismatch: unknown"


@pytest.mark.parametrize(
    ("pod", "cause"),
    [
        (a_pod(), PodCause.UNASSIGNED),
        (a_pod(conditions=unscheduled("SchedulingGated")), PodCause.GATED),
        (a_pod(conditions=unscheduled("Unschedulable", FULL)), PodCause.UNSCHEDULABLE),
        (a_pod(conditions=unscheduled("Unschedulable"), nominatedNodeName="n1"), PodCause.PREEMPTING),
        (a_pod(conditions=SCHEDULED_WELL), PodCause.STARTING),
        (a_pod(state=waiting("ContainerCreating"), conditions=SCHEDULED_WELL), PodCause.STARTING),
        (a_pod(state=waiting("ImagePullBackOff"), conditions=SCHEDULED_WELL), PodCause.IMAGE),
        (a_pod(init=[("i", waiting("ErrImagePull"))], state=waiting("PodInitializing")), PodCause.IMAGE),
        (a_pod(state=waiting("CreateContainerConfigError")), PodCause.SETTINGS),
        (a_pod("Running", {"running": {}}), PodCause.RUNNING),
        (a_pod("Running", waiting("CrashLoopBackOff")), PodCause.CRASH_LOOP),
        (a_pod("Running", terminated(0, "Completed"), sidecars=[("xcom", {"running": {}})]), PodCause.SUCCEEDED),
        (a_pod("Succeeded", terminated(0, "Completed")), PodCause.SUCCEEDED),
        (a_pod("Failed", terminated(1, "Error")), PodCause.FAILED),
        (a_pod("Failed", terminated(1)), PodCause.FAILED),
        (a_pod("Failed", terminated(127, "StartError")), PodCause.FAILED),
        (a_pod("Failed", terminated(128, "StartError", WRONG_COMMAND)), PodCause.FAILED),
        (a_pod("Failed", terminated(128, "StartError", BROKEN_NODE)), PodCause.NODE_BROKEN),
        (a_pod("Failed", terminated(137, "OOMKilled")), PodCause.OOM_KILLED),
        (a_pod("Failed", init=[("i", terminated(137, "OOMKilled"))]), PodCause.OOM_KILLED),
        (a_pod("Failed", reason="Evicted", message="The node was low on resource: memory."), PodCause.EVICTED),
        (
            a_pod("Failed", KILLED, conditions=[("DisruptionTarget", "True", {"reason": "PreemptionByScheduler"})]),
            PodCause.PREEMPTED,
        ),
        (
            a_pod("Running", conditions=[("DisruptionTarget", "True", {"reason": "EvictionByEvictionAPI"})]),
            PodCause.EVICTED,
        ),
        (a_pod("Failed", conditions=[("DisruptionTarget", "True", {"reason": "DeletionByPodGC"})]), PodCause.NODE_LOST),
        (a_pod("Running", {"running": {}}, reason="NodeLost"), PodCause.NODE_LOST),
        (a_pod("Unknown"), PodCause.NODE_LOST),
        (a_pod("Failed", reason="Terminated", message="Pod was terminated in response to imminent node shutdown."),
         PodCause.NODE_LOST),
        (a_pod("Failed", KILLED, reason="DeadlineExceeded"), PodCause.DEADLINE),
        (a_pod("Failed", reason="OutOfnvidia.com/gpu"), PodCause.REFUSED),
        (a_pod("Failed", reason="UnexpectedAdmissionError"), PodCause.REFUSED),
        (a_pod("Running", {"running": {}}, deleted=True), PodCause.DELETED),
        (None, PodCause.DELETED),
    ],
)  # fmt: skip
def test_each_state_that_a_cluster_shows_is_known(pod, cause):
    assert pod_state(pod).cause is cause


@pytest.mark.parametrize(
    ("code", "ended_s", "cause"),
    [
        (1, -1, PodCause.FAILED),  # by itself, and was deleted then
        (1, 0, PodCause.FAILED),
        (143, 0, PodCause.DELETED),
        (137, 60, PodCause.DELETED),
        (1, 5, PodCause.DELETED),
    ],
)
def test_a_container_that_ends_since_its_pod_was_deleted_has_not_failed(code, ended_s, cause):
    """As kubelets report it: the pod fails before it is forgotten."""
    pod = a_pod("Failed", terminated(code, "Error"), deleted=True)
    pod.metadata.deletion_grace_period_seconds = 60
    deleted_at = pod.metadata.deletion_timestamp - timedelta(seconds=60)
    pod.status.container_statuses[0].state.terminated.finished_at = deleted_at + timedelta(seconds=ended_s)
    assert pod_state(pod).cause is cause
    pod.status.container_statuses[0].state.terminated.reason = "OOMKilled"
    assert pod_state(pod).cause is PodCause.OOM_KILLED


def test_every_cause_has_a_meaning_and_every_row_a_cause():
    assert set(ENDS) ^ set(WAIT_CODES) == set(PodCause) - {PodCause.RUNNING, PodCause.UNKNOWN}
    rows = {cause for table in (WAITING, TERMINATED, ENDED, DISRUPTED, SCHEDULED) for cause in table.values()}
    assert rows <= set(PodCause)
    assert PodCause.UNKNOWN not in rows


def test_the_reason_of_a_waiting_pod_is_the_schedulers_message():
    full = pod_state(a_pod(conditions=unscheduled("Unschedulable", FULL))).reason("2 × nvidia/a100")
    assert (full.code, full.asked, full.found, full.is_transient) == (ReasonCode.BUSY, "2 × nvidia/a100", FULL, True)
    wrong = pod_state(a_pod(conditions=unscheduled("Unschedulable", WRONG))).reason("x")
    assert (wrong.code, wrong.is_transient) == (ReasonCode.LABELS, False)
    image = pod_state(a_pod(state=waiting("ImagePullBackOff", 'Back-off pulling image "x"'))).reason("x")
    assert image.found == 'Back-off pulling image "x"'
    assert pod_state(a_pod("Running", {"running": {}})).reason("x") is None


def test_the_end_of_a_run_is_ours():
    ends = [
        pod_state(pod).end
        for pod in (
            a_pod("Succeeded"),
            a_pod("Failed", terminated(1, "Error")),
            a_pod("Failed", reason="Preempting"),
            a_pod("Failed", reason="NodeLost"),
            a_pod("Running", {"running": {}}),
        )
    ]
    assert ends == [RunEnd.FINISHED, RunEnd.FAILED, RunEnd.PAUSED, RunEnd.LOST, None]


def test_an_unknown_state_is_logged_once_and_is_unknown(caplog):
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        assert pod_state(a_pod("Failed", reason="SlippedOnABanana")).cause is PodCause.UNKNOWN
    assert len([record for record in caplog.records if "SlippedOnABanana" in record.getMessage()]) == 1
    assert pod_state(a_pod("Sleeping")).cause is PodCause.UNKNOWN
    assert pod_state(a_pod(conditions=unscheduled("Tuesday"))).cause is PodCause.UNKNOWN


def test_a_message_is_kept_on_one_line_and_short():
    state = pod_state(a_pod("Failed", reason="Evicted", message="a\nb\n" + "c" * 5000))
    assert state.message.startswith("a b ccc")
    assert len(state.message) == 1000


def test_a_container_whose_exit_code_is_of_a_failure_has_not_succeeded_whatever_its_reason_says():
    failed = terminated(1, "Completed")
    for pod in (a_pod("Failed", failed), a_pod("Failed", None, (), [("i", failed)])):
        assert pod_state(pod).cause is PodCause.FAILED


STATES = st.one_of(
    st.none(),
    st.builds(waiting, st.one_of(st.sampled_from(sorted(WAITING)), st.text(max_size=8))),
    st.builds(
        terminated, st.integers(-1, 255), st.one_of(st.none(), st.sampled_from(sorted(TERMINATED)), st.text(max_size=8))
    ),
    st.just({"running": {}}),
)
CONDITIONS = st.lists(
    st.tuples(
        st.sampled_from(["PodScheduled", "DisruptionTarget", "Ready"]),
        st.sampled_from(["True", "False", "Unknown"]),
        st.fixed_dictionaries({}, optional={"reason": st.sampled_from([*DISRUPTED, *SCHEDULED, "x"])}),
    ),
    max_size=3,
)
PHASES = st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"])


@given(PHASES, STATES, STATES, CONDITIONS, st.booleans(), st.one_of(st.none(), st.sampled_from([*ENDED, "x"])))
def test_any_pod_has_a_state(phase, state, init, conditions, deleted, reason):
    pod = a_pod(
        phase, state, (), [("i", init)] if init else [], conditions, deleted, **({"reason": reason} if reason else {})
    )
    pod_state_read = pod_state(pod)
    assert pod_state_read.cause in PodCause
    assert pod_state_read.node == "n1"
    if phase == "Succeeded":
        assert pod_state_read.end is RunEnd.FINISHED
    if phase == "Failed":
        assert pod_state_read.end in (RunEnd.FAILED, RunEnd.LOST, RunEnd.PAUSED, None)
        assert (pod_state_read.end is None) == (pod_state_read.cause is PodCause.UNKNOWN)


FAILED_PODS = {
    "pkg/kubelet/lifecycle/predicate.go": (
        "PodOSSelectorNodeLabelDoesNotMatch PodOSNotSupported InvalidNodeInfo InitContainerRestartPolicyForbidden "
        "SupplementalGroupsPolicyNotSupported UnexpectedAdmissionError UnknownReason UnexpectedPredicateFailureType "
        "OutOfcpu OutOfmemory OutOfephemeral-storage OutOfpods NodeAffinity NodeName NodePorts"
    ),
    "pkg/kubelet/lifecycle/handlers.go": "AppArmor PodLevelResourcesNotSupported PodFeatureUnsupported",
    "pkg/kubelet/cm/admission/errors.go": "EmptyPodSharedPoolError DeviceNotReady",
    "pkg/kubelet/cm/cpumanager/policy_static.go": "SMTAlignmentError",
    "pkg/kubelet/cm/topologymanager/scope.go": "TopologyAffinityError",
    "pkg/kubelet/sysctl/allowlist.go": "SysctlForbidden",
    "pkg/kubelet/eviction/eviction_manager.go": "Evicted",
    "pkg/kubelet/preemption/preemption.go": "Preempting",
    "pkg/kubelet/active_deadline.go": "DeadlineExceeded",
    "pkg/kubelet/nodeshutdown/nodeshutdown_manager.go": "NodeShutdown Terminated",
    "pkg/kubelet/kubelet.go": "VolumeAttachmentLimitExceeded",
    "pkg/util/node/node.go": "NodeLost",
}
"""Source → reasons of a pod that failed (``status.reason``)."""

WAITING_CONTAINERS = {
    "pkg/kubelet/images/types.go": (
        "ImagePullBackOff ImageInspectError ErrImagePull ErrImageNeverPull InvalidImageName"
    ),
    "staging/src/k8s.io/cri-api/pkg/errors/errors.go": "RegistryUnavailable SignatureValidationFailed RROUnsupported",
    "pkg/kubelet/container/sync_result.go": (
        "CrashLoopBackOff RunContainerError KillContainerError CreatePodSandboxError ConfigPodSandboxError "
        "KillPodSandboxError ResizePodInPlaceError RemoveContainerError"
    ),
    "pkg/kubelet/kuberuntime/kuberuntime_container.go": (
        "CreateContainerConfigError PreCreateHookError CreateContainerError PreStartHookError PostStartHookError"
    ),
    "pkg/kubelet/kuberuntime/kuberuntime_manager.go": "ImageVolumeMountFailed",
    "pkg/kubelet/kubelet_pods.go": "ContainerCreating PodInitializing",
}
"""Source → reasons of a container that waits."""

ENDED_CONTAINERS = {
    "pkg/kubelet/kubelet_pods.go": "ContainerStatusUnknown",
    "containerd and CRI-O": "Completed Error OOMKilled StartError ContainerCannotRun",
}
CONDITION_REASONS = {
    "DisruptionTarget": "PreemptionByScheduler EvictionByEvictionAPI TerminationByKubelet DeletionByTaintManager "
    "DeletionByPodGC DeletionByDeviceTaintManager",
    "PodScheduled": "Unschedulable SchedulingGated SchedulerError",
}
TAINTS = "node(s) had taints that the pod didn't tolerate"
"""A reason that is a sentence (pkg/scheduler/framework/plugins/tainttoleration)."""


def reasons(table):
    return [reason for text in table.values() for reason in text.split()]


@pytest.mark.parametrize("reason", [*reasons(FAILED_PODS), TAINTS, "OutOfnvidia.com/gpu"])
def test_each_reason_of_a_failed_pod_is_known(reason):
    assert pod_state(a_pod("Failed", reason=reason)).cause is not PodCause.UNKNOWN


@pytest.mark.parametrize("reason", reasons(WAITING_CONTAINERS))
def test_each_reason_of_a_waiting_container_is_known(reason):
    assert reason in WAITING


def test_each_reason_of_an_ended_container_and_of_a_condition_is_known():
    assert set(reasons(ENDED_CONTAINERS)) <= set(TERMINATED)
    assert set(CONDITION_REASONS["DisruptionTarget"].split()) == set(DISRUPTED)
    assert set(CONDITION_REASONS["PodScheduled"].split()) == set(SCHEDULED)


def test_the_tables_have_no_name_of_a_constant():
    assert "PodLevelResourcesNotAdmittedReason" not in ENDED


@pytest.mark.parametrize(
    "message",
    [
        "0/2 nodes are available: 2 cannot allocate all claims. preemption: 0/2 nodes are available",
        "0/3 nodes are available: 1 cannot allocate all claims, 2 node(s) didn't match Pod's node affinity/selector.",
        "resourceclaim in use",
    ],
)
def test_a_busy_device_of_a_claim_is_busy(message):
    reason = pod_state(a_pod(conditions=unscheduled("Unschedulable", message))).reason("x")
    assert (reason.code, reason.is_transient) == (ReasonCode.BUSY, True)
