"""Why a pod is in its state: tables from the reasons of Kubernetes' scheduler and kubelet to ours.

Sources: k8s.io/api/core/v1/types.go (PodReason*, conditions), pkg/kubelet/images/types.go, pkg/kubelet/container/
sync_result.go, pkg/kubelet/eviction, pkg/kubelet/lifecycle, pkg/kubelet/cm, "Pod Lifecycle" and "Pod disruption
conditions" in Kubernetes' documentation. The tests list the reasons of version 1.36 by source.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from hetero_airflow.model.plan import ReasonCode
from hetero_airflow.model.run import RunEnd


class PodCause(StrEnum):
    """Why a pod is in its state."""

    GATED = "gated"
    """Held back before scheduling, for example by Kueue until there is quota."""
    UNSCHEDULABLE = "unschedulable"
    """No node matches it, or no matching node has free capacity."""
    PREEMPTING = "preempting"
    """Pods of lower priority are being ended for it."""
    UNASSIGNED = "unassigned"
    """The scheduler has not looked at it yet."""
    STARTING = "starting"
    """It has a node that prepares volumes, networks and images."""
    IMAGE = "image"
    """Its image can't be pulled."""
    SETTINGS = "settings"
    """Its container can't be created: a secret, a config map, a mount or the command is missing."""
    RUNNING = "running"
    """Its container runs."""
    CRASH_LOOP = "crash_loop"
    """Its container ends and is started again, repeatedly."""
    SUCCEEDED = "succeeded"
    """Its container ended without an error."""
    FAILED = "failed"
    """Its container ended with an error of its own."""
    OOM_KILLED = "oom_killed"
    """The kernel killed it because memory ran out."""
    EVICTED = "evicted"
    """The kubelet or an authorized user removed it from its node."""
    PREEMPTED = "preempted"
    """It was ended for a pod of higher priority."""
    NODE_LOST = "node_lost"
    """Its node is gone or does not answer."""
    DEADLINE = "deadline"
    """It ran longer than its deadline allows."""
    NODE_BROKEN = "node_broken"
    """Its node could not start its container: the container runtime, a driver or a mount failed."""
    REFUSED = "refused"
    """The kubelet did not accept it: the resources that the scheduler saw were gone."""
    DELETED = "deleted"
    """Someone deleted it."""
    UNKNOWN = "unknown"
    """Kubernetes gave a reason that is not in these tables."""


ENDS: Mapping[PodCause, RunEnd] = MappingProxyType(
    {
        PodCause.CRASH_LOOP: RunEnd.FAILED,
        PodCause.SUCCEEDED: RunEnd.FINISHED,
        PodCause.FAILED: RunEnd.FAILED,
        PodCause.OOM_KILLED: RunEnd.FAILED,
        PodCause.EVICTED: RunEnd.LOST,
        PodCause.PREEMPTED: RunEnd.PAUSED,
        PodCause.NODE_LOST: RunEnd.LOST,
        PodCause.DEADLINE: RunEnd.FAILED,
        PodCause.NODE_BROKEN: RunEnd.LOST,
        PodCause.REFUSED: RunEnd.LOST,
        PodCause.DELETED: RunEnd.LOST,
    }
)
"""How the run of the task ended. For Kubernetes a pod in a crash loop has not ended; its task has."""

WAIT_CODES: Mapping[PodCause, ReasonCode] = MappingProxyType(
    {
        PodCause.GATED: ReasonCode.RESERVED,
        PodCause.UNSCHEDULABLE: ReasonCode.BUSY,
        PodCause.PREEMPTING: ReasonCode.PREEMPTING,
        PodCause.UNASSIGNED: ReasonCode.SLOTS,
        PodCause.STARTING: ReasonCode.SLOTS,
        PodCause.IMAGE: ReasonCode.RUNTIME,
        PodCause.SETTINGS: ReasonCode.RUNTIME,
    }
)
"""Why the task does not run yet."""

WAITING: Mapping[str, PodCause] = MappingProxyType(
    {
        **dict.fromkeys(("ContainerCreating", "PodInitializing"), PodCause.STARTING),
        **dict.fromkeys(
            (
                "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
                "RegistryUnavailable", "SignatureValidationFailed", "RROUnsupported", "ImageVolumeMountFailed",
            ),
            PodCause.IMAGE,
        ),
        **dict.fromkeys(
            (
                "CreateContainerConfigError", "CreateContainerError", "PreCreateHookError", "PreStartHookError",
                "PostStartHookError", "RunContainerError", "KillContainerError", "RemoveContainerError",
                "CreatePodSandboxError", "ConfigPodSandboxError", "KillPodSandboxError", "ResizePodInPlaceError",
            ),
            PodCause.SETTINGS,
        ),
        "CrashLoopBackOff": PodCause.CRASH_LOOP,
    }
)  # fmt: skip
"""Reasons of a waiting container."""

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
"""Reasons of a container that ended."""

COMMAND_FAULT = re.compile(r'exec: "(?!nvidia-)|exec format error')
"""In the message of a container that could not start for its own command or image. Other messages are about the node.
runc: ``unable to start container process: exec: "pyhton3": executable file not found in $PATH``."""

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
                "PodLevelResourcesNotSupported", "ContainerRestartRulesForbidden", "EmptyPodSharedPoolError",
                "SMTAlignmentError", "DeviceNotReady", "VolumeAttachmentLimitExceeded", "UnknownReason",
                "UnexpectedPredicateFailureType", "node(s) had taints that the pod didn't tolerate",
            ),
            PodCause.REFUSED,
        ),
    }
)  # fmt: skip
"""Reasons of a failed pod. The kubelet also has ``OutOf<resource>`` for each resource."""

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
"""Reasons of the condition ``DisruptionTarget``."""

SCHEDULED: Mapping[str, PodCause] = MappingProxyType(
    {
        "Unschedulable": PodCause.UNSCHEDULABLE,
        "SchedulingGated": PodCause.GATED,
        "SchedulerError": PodCause.UNSCHEDULABLE,
    }
)
"""Reasons of the condition ``PodScheduled`` while it is false."""
