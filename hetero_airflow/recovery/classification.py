"""Why a run ended. Pure: the same evidence gives the same class in the task and in the scheduler.

`FAILURE_SIGNS` is the table: which text, exception type or fact means which class. The first match counts. The order is
that of causes: a request to stop, broken hardware, memory, the task's own code, lost connections (which other processes
notice when one of them died of a cause above), and last the bare end of the process. Each row names the source of its
text. The tests have a real message for each row.
"""

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from hetero_airflow.contract.notice import EXIT_STOPPED
from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.health.error_classes import XIDS, ErrorClass, classify_xid
from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.recovery.failure import MAX_EVIDENCE, Failure, FailureClass

_CERTAIN = frozenset({FailureClass.PREEMPTED, FailureClass.HUNG, FailureClass.HARDWARE})
"""Classes that a fatal XID does not replace."""

_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM})
_FATAL_XIDS = "|".join(str(xid) for xid, (error_class, _) in sorted(XIDS.items()) if error_class is ErrorClass.FATAL)


@dataclass(frozen=True, slots=True)
class Classification:
    """The class of a failure, and the text or fact that proves it."""

    failure_class: FailureClass
    evidence: str
    is_of_host: bool = False
    """Whether it is about the host, and not about the task's devices."""


@dataclass(frozen=True, slots=True)
class FailureSign:
    """One row of the table."""

    failure_class: FailureClass
    find: Callable[[Evidence], str | None]
    """Describes the match and its place; None if there is none."""
    source: str
    """Where the text or the fact is documented, or was seen."""
    is_of_host: bool = False


def _text(failure_class: FailureClass, source: str, pattern: str, *, is_of_host: bool = False) -> FailureSign:
    """A text in the exception, in its causes, or in the log if the log counts."""
    compiled = re.compile(pattern)

    def find(evidence: Evidence) -> str | None:
        for where, text in evidence.texts():
            match = compiled.search(text)
            if match is not None:
                return f'"{" ".join(match[0].split())}" in {where}'
        return None

    return FailureSign(failure_class, find, source, is_of_host)


def _last(failure_class: FailureClass, source: str, *names: str) -> FailureSign:
    """The type of the exception that ended the task; the types of its causes don't count."""

    def find(evidence: Evidence) -> str | None:
        name = evidence.final_exception_type
        return f"{name} ended the task" if name in names else None

    return FailureSign(failure_class, find, source)


def _asked_to_stop(evidence: Evidence) -> str | None:
    if evidence.notice is not None:
        return f"the task was asked to stop: {evidence.notice}"
    return f"exit code {EXIT_STOPPED}" if evidence.exit_code == EXIT_STOPPED else None


def _hung(evidence: Evidence) -> str | None:
    return None if evidence.hung_s is None else f"no progress for {evidence.hung_s:g} s"


def _hardware_xid(evidence: Evidence) -> str | None:
    xids = ((device_id, *classify_xid(xid)) for device_id, xid in evidence.xids)
    return "; ".join(f"{text} on {device_id}" for device_id, kind, text in xids if kind is ErrorClass.FATAL) or None


def _oom_killed(evidence: Evidence) -> str | None:
    return f"the kernel killed {evidence.oom_kills} for memory in its cgroup" if evidence.oom_kills else None


def _killed(evidence: Evidence) -> str | None:
    number = evidence.kill_signal
    return f"ended by {signal.Signals(number).name}" if number in _FROM_OUTSIDE else None


def _gone(evidence: Evidence) -> str | None:
    return "its worker or process disappeared" if evidence.is_gone else None


_F = FailureClass

IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")
"""Errors that another worker may not have, because other software is installed there."""

FAILURE_SIGNS: tuple[FailureSign, ...] = (
    FailureSign(_F.PREEMPTED, _asked_to_stop, "the notice of hetero_airflow itself"),
    _last(_F.PREEMPTED, "hetero_airflow.contract.notice", "hetero_airflow.contract.notice.Stopped"),
    FailureSign(_F.NO_START, attrgetter("start_problem"),
                "Kubernetes' message about a pod that waits, or about a quota"),
    FailureSign(_F.HUNG, _hung, "the hang watch of hetero_airflow itself"),
    _last(_F.LOST_WORKER, "hetero_airflow.errors: another run has the task's lease",
          "hetero_airflow.errors.FencedOut", "hetero_airflow.errors.LeaseLost"),
    _last(_F.USER_ERROR, "airflow/sdk/exceptions.py: fail without retrying",
          "airflow.sdk.exceptions.AirflowFailException", "airflow.exceptions.AirflowFailException"),
    # Before memory: a GPU with an uncorrectable error answers "out of memory" (NVIDIA/k8s-device-plugin#267).
    FailureSign(_F.HARDWARE, _hardware_xid, "hetero_airflow.health.error_classes"),
    _text(_F.HARDWARE, "NVIDIA/k8s-device-plugin#267, vllm-project/vllm#5222, ROCm/legacy-rocm-build#4021",
          r"(?i)uncorrectable (?:ECC|hardware|NVLink) error|CUDA_ERROR_ECC_UNCORRECTABLE"),
    _text(_F.HARDWARE, "NVIDIA/open-gpu-kernel-modules#507, NVIDIA/NVSentinel#155",
          r"(?i)fallen off the bus|GPU is lost\b"),
    _text(_F.HARDWARE, "docs.nvidia.com/deploy/xid-errors",
          rf"NVRM: Xid \([^)\n]{{1,40}}\): (?:{_FATAL_XIDS}),"),
    _text(_F.HARDWARE, "ROCm/legacy-rocm-build#4021", r"HW Exception by GPU node|amdgpu: GPU reset begin"),
    _text(_F.HARDWARE, "pytorch/pytorch#100691; the lease is exclusive, so no other task uses the device",
          r"CUDA-capable device(?:\(s\)|s) (?:is/)?are busy or unavailable"),
    _text(_F.DEVICE_MEMORY, "pytorch/pytorch#16417, huggingface/autotrain-advanced#737, vllm-project/vllm-ascend#19",
          r"torch\.(?:cuda\.)?OutOfMemoryError|\b(?:CUDA|HIP|NPU|XPU|MPS backend) out of memory"),
    _text(_F.DEVICE_MEMORY, "CUDA and HIP runtime error texts; NVIDIA/k8s-device-plugin#243, keras-team/keras#13889",
          r"(?i)cuda (?:runtime )?error.{0,40}(?:out of memory|cannot allocate memory)|HIP error: out of memory"
          r"|cuda failure (?:\d+ )?'out of memory'|(?:CUDA_ERROR_OUT_OF_MEMORY|HIP_ERROR_OutOfMemory)"),
    _text(_F.DEVICE_MEMORY, "pytorch CUDABlas; QwenLM/Qwen3#873", r"CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED"),
    _text(_F.DEVICE_MEMORY, "XLA and TensorFlow; jax-ml/jax#13428, google-deepmind/jaxline#11",
          r"(?i)RESOURCE[_ ]?EXHAUSTED(?:Error)?:.{0,160}(?:out of memory|\bOOM\b)"),
    _text(_F.DEVICE_MEMORY, "CANN; vllm-project/vllm-ascend#1993",
          r"alloc device memory failed|EL0004: .{0,80}Failed to allocate memory"),
    _text(_F.HOST_MEMORY, "torch's MapAllocator: /dev/shm, which is memory, is full",
          r"unable to (?:write to|open|mmap \d+ bytes from) (?:file|shared memory object) </torch_"),
    _text(_F.CODE_ERROR, "NCCL's use of cudaDeviceEnablePeerAccess",
          r"peer access is not supported between these two devices"),
    # The wheel has no code for this model. Another host of the same kind would not help, and the device is well.
    _text(_F.CODE_ERROR, "CUDA and HIP runtime error texts",
          r"no kernel image is available for execution|HIP error: invalid device function"),
    _text(_F.WORKER, "CUDA runtime and torch/cuda/__init__.py; ray-project/ray#33798, PaddlePaddle/PaddleOCR#16162",
          r"No (?:CUDA|HIP) GPUs are available|no (?:CUDA|ROCm)-capable device is detected"
          r"|CUDA_ERROR_NO_DEVICE|hipErrorNoDevice|Unable to open /dev/kfd"),
    _text(_F.WORKER, "pytorch/pytorch#35710: the fabric manager does not run",
          r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY"),
    _text(_F.WORKER, "CUDA driver and runtime error texts; torch/cuda/__init__.py",
          r"driver version is insufficient for CUDA runtime version|NVIDIA driver on your system is too old"
          r"|Found no NVIDIA driver on your system|unsupported display driver / cuda driver combination"
          r"|CUDA_ERROR_(?:SYSTEM_DRIVER_MISMATCH|COMPAT_NOT_SUPPORTED_ON_DEVICE)"
          r"|CUDA unknown error - this may be due to an incorrectly set up environment"),
    _text(_F.WORKER, "NVML; NVIDIA/nvidia-container-toolkit#394, NVIDIA/gpu-operator#898",
          r"(?i)driver/library version mismatch|failed to initialize NVML|can't initialize NVML"
          r"|NVMLError_(?:LibRmVersionMismatch|DriverNotLoaded|LibraryNotFound)"),
    _text(_F.WORKER, "the dynamic linker: the driver's library is not on the host, or not in the container",
          r"lib(?:cuda|nvidia-ml|amdhip64|hsa-runtime64|ascendcl|ascend_hal)\.so[.\d]*: cannot open shared object"),
    _text(_F.WORKER, "CANN; vllm-project/vllm-ascend#4284, Ascend/samples#16, #21: 507033, the device can't be opened",
          r"(?i)aclInit failed|(?:set ?device|open device).{0,60}\b507033\b|Failed to start the device"),
    _text(_F.WORKER, "libtpu; jax-ml/jax#10192, pytorch/xla#3214, #3947",
          r"TPU is already in use by|libtpu\.so (?:is )?already in use|PERMISSION_DENIED: open\(/dev/(?:accel|vfio)"),
    _text(_F.WORKER, "errno(3): ENOSPC, ESTALE, EIO; ENOTCONN of a path is a FUSE mount whose server died",
          r"No space left on device|Stale (?:NFS )?file handle|Input/output error"
          r"|Transport endpoint is not connected: ['\"]?/", is_of_host=True),
    _text(_F.WORKER, "containerd and runc, before anything ran; NVIDIA/k8s-device-plugin#1431",
          r'failed to create (?:containerd|shim) task(?!.{0,400}exec: "(?!nvidia-))', is_of_host=True),
    FailureSign(_F.WORKER, attrgetter("worker_problem"),
                "the kubelet's message about a container that it could not start", is_of_host=True),
    # Not "device-side assert" alone: torch ends every CUDA error with a hint at "device-side assertions".
    _text(_F.CODE_ERROR, "pytorch/pytorch#61329: a label or an index out of range", r"device-side assert triggered"),
    # Ambiguous: an error in a kernel, unless the driver reported a hardware XID (see above).
    _text(_F.UNKNOWN, "hpcaitech/Open-Sora#694, pytorch/pytorch#49832, ROCm/legacy-rocm-build#4554",
          r"an illegal memory access was encountered|unspecified launch failure|Memory access fault by GPU node"
          r"|HSA_STATUS_ERROR_MEMORY_FAULT"),
    _text(_F.HOST_MEMORY, "Python; numpy's _ArrayMemoryError",
          r"(?:^|[\s.])_?(?:Array)?MemoryError(?::|\s*$)|Unable to allocate [\d.]+ [KMGTP]iB for an array"),
    _text(_F.HOST_MEMORY, "pytorch/pytorch#20618",
          r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|\bCannot allocate memory|std::bad_alloc"),
    _text(_F.HOST_MEMORY, "pytorch/pytorch#5040, #108861",
          r"insufficient shared memory \(shm\)"
          r"|DataLoader worker \([^)]{1,60}\) is killed by signal: (?:Bus error|Killed)"),
    _text(_F.HOST_MEMORY, "the kernel, and Kubernetes' reason for a container's end",
          r"OOMKilled|(?:Memory cgroup out|Out) of memory: Killed process"),
    _last(_F.USER_ERROR, "the Python language reference: the same code fails again in the same way",
          "SyntaxError", "IndentationError", "TabError", *IMPORT_ERRORS),
    _last(_F.USER_ERROR, "hetero_airflow.errors: the task asks for what it can't have",
          "hetero_airflow.errors.RequestError", "hetero_airflow.errors.NoLeaseError"),
    _last(_F.CODE_ERROR, "the Python language reference: the same code and data fail again in the same way",
          "NameError", "UnboundLocalError", "TypeError", "KeyError", "FileNotFoundError", "NotImplementedError"),
    # After the rows for the task's own code: several workers on one host may share a cgroup.
    FailureSign(_F.HOST_MEMORY, _oom_killed, "docs.kernel.org/admin-guide/cgroup-v2: memory.events, oom_kill"),
    _last(_F.NETWORK, "hetero_airflow: the checkpoint store did not answer any retry of its client; the leader of a "
          "gang did not say where to meet it",
          "hetero_airflow.errors.CheckpointStoreUnavailable", "hetero_airflow.operators.gang_rendezvous.LeaderTimeout"),
    _text(_F.NETWORK, "torch ProcessGroupNCCL; hiyouga/LlamaFactory#7396, vllm-project/vllm-ascend#4972",
          r"Watchdog caught collective operation timeout|\b[NH]CCL (?:operation )?time(?:d )?out"),
    _text(_F.NETWORK, "NVIDIA/nccl#2076, #975, #795",
          r"nccl(?:Remote|System)Error|Net ?: (?:Call to \w+ from|Connection closed by remote peer)"),
    _text(_F.NETWORK, "NCCL's net_ib; tatsu-lab/stanford_alpaca#207", r"NET/IB ?: Got completion from peer"),
    _text(_F.NETWORK, "gloo; RVC-Project/Retrieval-based-Voice-Conversion-WebUI#1882",
          r"gloo/transport/\S{1,80}\] .{0,120}?(?:[Cc]losed by peer|reset by peer|[Tt]imed out|refused)"),
    _text(_F.NETWORK, "torch TCPStore; vllm-project/vllm#19670, zai-org/ChatGLM-6B#1232",
          r"torch\.distributed\.Dist(?:Network|Store)Error|The client socket has (?:timed out|failed to connect)"
          r"|got error: Socket Timeout|rendezvous\.api\.RendezvousTimeoutError"),
    _text(_F.NETWORK, "HCCL; vllm-project/vllm-ascend#486", r"\bEI0006\b|Getting socket times out"),
    _text(_F.LOST_WORKER, "subprocess, torchrun and shells of a process that SIGKILL ended",
          r"died with <Signals\.SIG(?:KILL|TERM)|(?:exit (?:code|status)|exitcode)\s*:? (?:137|143|-9|-15)\b"
          r"|terminated with signal SIG(?:KILL|TERM)"),
    FailureSign(_F.LOST_WORKER, _killed, "wait(2): ended by a signal from outside"),
    FailureSign(_F.LOST_WORKER, _gone, "the liveness of hetero_airflow itself"),
)  # fmt: skip
"""The first row that matches decides."""


def classify(evidence: Evidence) -> Classification:
    """The class of the first row of `FAILURE_SIGNS` that matches; UNKNOWN if none does.

    >>> from hetero_airflow.recovery.evidence import RaisedException
    >>> hardware = classify(Evidence(raised=(RaisedException("RuntimeError", "CUDA error: uncorrectable ECC error"),)))
    >>> hardware.failure_class, hardware.evidence
    (<FailureClass.HARDWARE: 'hardware'>, '"uncorrectable ECC error" in the exception')
    >>> classify(Evidence(raised=(RaisedException("ValueError", "no such learning rate"),))).failure_class
    <FailureClass.UNKNOWN: 'unknown'>
    """
    for sign in FAILURE_SIGNS:
        match = sign.find(evidence)
        if match is not None:
            return Classification(sign.failure_class, _shortened(match), sign.is_of_host)
    return Classification(FailureClass.UNKNOWN, _shortened(_end_text(evidence)))


def failure_of(evidence: Evidence, lease: TaskLease | None, epoch: int, now: datetime) -> Failure:
    """The record of a run that failed.

    :param lease: its lease; None without one
    :param epoch: the task instance's `max_tries`
    """
    classification = classify(evidence)
    failure_class = classification.failure_class
    if lease is not None and lease.is_remote and evidence.final_exception_type in IMPORT_ERRORS:
        failure_class = FailureClass.CODE_ERROR  # another worker may have the module
    is_cpu = lease is not None and lease.kind == "cpu"
    has_device = lease is not None and not is_cpu and not lease.simulated
    if failure_class is FailureClass.WORKER and not classification.is_of_host and not has_device:
        failure_class = FailureClass.CODE_ERROR  # it uses a device that it has not leased
    host_memory_bytes = lease.memory_bytes or None if lease and is_cpu else None
    return Failure(
        failure_class=failure_class,
        evidence=classification.evidence,
        worker=lease.worker if lease else None,
        device_ids=lease.ids if lease and not is_cpu else (),
        is_of_host=classification.is_of_host,
        at=now,
        epoch=epoch,
        token=lease.token if lease else None,
        memory_bytes=lease.memory_bytes or None if lease and not is_cpu else None,
        host_memory_bytes=evidence.host_memory_bytes or host_memory_bytes,
    )


def with_xid_cause(failure: Failure, xids: Sequence[tuple[str, int]]) -> Failure:
    """The failure as a hardware failure, if the driver reported a fatal error that the task itself could not see.

    :param xids: (device id, XID) of the fatal errors that the driver reported for its devices while it ran
    """
    if not xids or failure.failure_class in _CERTAIN:
        return failure
    classification = classify(Evidence(xids=tuple(xids)))
    return failure.model_copy(
        update={"failure_class": classification.failure_class, "evidence": classification.evidence}
    )


def _end_text(evidence: Evidence) -> str:
    if evidence.raised:
        return f"{evidence.raised[0].type} ended the task"
    if evidence.kill_signal is not None:
        return f"ended by signal {evidence.kill_signal}"
    return "no evidence" if evidence.exit_code is None else f"exit code {evidence.exit_code}"


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_EVIDENCE else f"{text[: MAX_EVIDENCE - 3]}..."
