"""The tables of reasons have every reason of Kubernetes 1.36 that a pod's status can show."""

import pytest

from hetero_airflow.engines.kubernetes.states.causes import DISRUPTED, ENDED, SCHEDULED, TERMINATED, WAITING, PodCause
from hetero_airflow.engines.kubernetes.states.pod_state import pod_state
from hetero_airflow.model.plan import ReasonCode
from tests.engines.kubernetes.states.test_pod_state import a_pod, unscheduled

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
CONDITIONS = {
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
    assert set(CONDITIONS["DisruptionTarget"].split()) == set(DISRUPTED)
    assert set(CONDITIONS["PodScheduled"].split()) == set(SCHEDULED)


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
