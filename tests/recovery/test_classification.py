import subprocess
import sys
from datetime import timedelta

import numpy as np
import pytest
from airflow.sdk.exceptions import AirflowFailException
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.contract import notice
from hetero_airflow.errors import CheckpointStoreUnavailable, FencedOut, LeaseLost
from hetero_airflow.operators.gang_rendezvous import LeaderTimeout
from hetero_airflow.recovery.classification import FAILURE_SIGNS, Classification, classify
from hetero_airflow.recovery.evidence import Evidence, chain_of
from hetero_airflow.recovery.evidence import RaisedException as Raised
from hetero_airflow.recovery.failure import MAX_EVIDENCE, FailureClass

F = FailureClass


def raised(text: str, kind: str = "RuntimeError") -> Evidence:
    return Evidence(raised=(Raised(kind, text),))


def logged(text: str, code: int = 1) -> Evidence:
    return Evidence(log=text, exit_code=code)


# Real messages, as users and vendors posted them, shortened at their ends; each with where it was seen
MESSAGES: list[tuple[str, FailureClass, Evidence]] = [
    ("notice", F.PREEMPTED, Evidence(notice="for a task of class urgent", exit_code=-15)),
    ("saved and ended", F.PREEMPTED, Evidence(exit_code=85)),
    ("Stopped", F.PREEMPTED, raised("saved at step 70", "hetero_airflow.contract.notice.Stopped")),
    ("hung", F.HUNG, Evidence(hung_s=900, exit_code=-9)),
    ("unscheduled pod", F.NO_START, Evidence(start_problem="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")),
    ("fenced out", F.LOST_WORKER, raised("token 3", "hetero_airflow.errors.FencedOut")),
    ("user gives up", F.USER_ERROR, raised("no such account", "airflow.sdk.exceptions.AirflowFailException")),
    ("Xid event", F.HARDWARE, Evidence(raised=raised("NCCL timeout").raised, xids=(("GPU-1", 79),))),
    ("vllm#5222", F.HARDWARE, raised(
        "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported at some "
        "other API call, so the stacktrace below might be incorrect.\nCompile with `TORCH_USE_CUDA_DSA` to enable "
        "device-side assertions.")),
    ("DeepFaceLab_Linux#89", F.HARDWARE, raised(
        "failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered")),
    ("NVSentinel#155", F.HARDWARE, logged("NVRM: fallen off the bus and is not responding to commands.")),
    ("NVSentinel#155, the Xid", F.HARDWARE, logged("NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus")),
    ("dynamic-page-retirement", F.HARDWARE, logged("NVRM: Xid (PCI:0000:44:00): 48, pid=1896, DBE (double bit error)")),
    ("legacy-rocm-build#4021", F.HARDWARE, logged(
        "HW Exception by GPU node-3 (Agent handle: 0x5a5c587a51c0) reason :GPU Hang")),
    ("legacy-rocm-build#4021, dmesg", F.HARDWARE, logged(
        "amdgpu 0000:dd:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!")),
    ("pytorch#100691", F.HARDWARE, raised("CUDA error: CUDA-capable device(s) is/are busy or unavailable")),
    ("PaMIR#17", F.HARDWARE, raised("CUDA error: all CUDA-capable devices are busy or unavailable")),
    ("pytorch#16417", F.DEVICE_MEMORY, raised(
        "CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 11.06 MiB "
        "is free.", "torch.OutOfMemoryError")),
    ("before torch 2.5", F.DEVICE_MEMORY, raised(
        "CUDA out of memory. Tried to allocate 192.00 MiB (GPU 0; 4.00 GiB total capacity; 3.08 GiB already allocated)",
        "torch.cuda.OutOfMemoryError")),
    ("autotrain-advanced#737", F.DEVICE_MEMORY, logged(
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 124.00 MiB. GPU 0 has a total capacity of "
        "19.94 GiB")),
    ("vllm-ascend#19", F.DEVICE_MEMORY, raised(
        "NPU out of memory. Tried to allocate 22.00 MiB (NPU 0; 60.97 GiB total capacity; 10.24 GiB already)")),
    ("k8s-device-plugin#267, without the Xid", F.DEVICE_MEMORY, raised("CUDA error: out of memory")),
    ("keras#13889", F.DEVICE_MEMORY, logged(
        "rocm_driver.cc:600] failed to allocate 890.06M (933298432 bytes) from device: HIP_ERROR_OutOfMemory")),
    ("NCCL's own allocation", F.DEVICE_MEMORY, raised(
        "NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
        "torch.distributed.DistBackendError")),
    ("Qwen3#873", F.DEVICE_MEMORY, raised(
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")),
    ("jax#13428", F.DEVICE_MEMORY, raised(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6291456 bytes.\nBufferAssignment OOM Debugging.",
        "jaxlib.xla_extension.XlaRuntimeError")),
    ("TensorFlow", F.DEVICE_MEMORY, logged(
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[64]")),
    ("vllm-ascend#1993", F.DEVICE_MEMORY, raised(
        "EL0004: [PID: 553] 2025-09-17-04:55:13.065.712 Failed to allocate memory.\n        Possible Cause: Available "
        "memory is insufficient.\nalloc device memory failed, runtime result = 207001")),
    ("pytorch#61329", F.CODE_ERROR, raised(
        "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported")),
    ("a full /dev/shm", F.HOST_MEMORY, raised(
        "unable to write to file </torch_1123_2049>: No space left on device (28)")),
    ("two GPUs without a link", F.CODE_ERROR, raised(
        "NCCL error in: NCCLUtils.hpp:268, unhandled cuda error, NCCL version 2.21.5. Last error: Cuda failure 'peer "
        "access is not supported between these two devices'", "torch.distributed.DistBackendError")),
    ("a wheel without code for the GPU", F.CODE_ERROR, raised(
        "CUDA error: no kernel image is available for execution on the device")),
    ("ray#33798", F.WORKER, raised("No CUDA GPUs are available")),
    ("PaddleOCR#16162", F.WORKER, logged("failed call to cuInit: CUDA_ERROR_NO_DEVICE: no device")),
    ("pytorch#35710", F.WORKER, raised(
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
        "that might have already set an error? Error 802: system not yet initialized")),
    ("torch/cuda/__init__.py", F.WORKER, raised(
        "The NVIDIA driver on your system is too old (found version 10010). Please update your GPU driver")),
    ("nvidia-container-toolkit#171", F.WORKER, logged("Failed to initialize NVML: Driver/library version mismatch")),
    ("a host without its driver's library", F.WORKER, raised(
        "libcuda.so.1: cannot open shared object file: No such file or directory", "ImportError")),
    ("vllm-ascend#4284", F.WORKER, raised(
        "Initialize:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:152 NPU function error: "
        "c10_npu::SetDevice(device_id_), error code is 507033")),
    ("Ascend/samples#16", F.WORKER, logged("[ERROR]  acl set device 0 failed, errorCode = 507033")),
    ("jax#22070", F.WORKER, raised(
        "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with pid 176028. Not "
        "attempting to load libtpu.so in this process.")),
    ("a full disk", F.WORKER, raised("[Errno 28] No space left on device", "OSError")),
    ("a server of NFS that is gone", F.WORKER, raised("[Errno 116] Stale file handle: '/data/train'", "OSError")),
    ("a FUSE mount whose server died", F.WORKER, raised(
        "[Errno 107] Transport endpoint is not connected: '/mnt/bucket/train'", "OSError")),
    ("k8s-device-plugin#1431", F.WORKER, raised(
        "Pod train-x returned a failure. failed to create containerd task: failed to create shim task: OCI runtime "
        "create failed: runc create failed: unable to start container process: error during container init: error "
        "running prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'",
        "airflow.sdk.exceptions.AirflowException")),
    ("gpu-operator#898", F.WORKER, Evidence(
        worker_problem="nvidia-container-cli: initialization error: nvml error: driver/library version mismatch")),
    ("Open-Sora#694", F.UNKNOWN, raised("CUDA error: an illegal memory access was encountered")),
    ("pytorch#49832", F.UNKNOWN, raised("CUDA error: unspecified launch failure")),
    ("legacy-rocm-build#4554", F.UNKNOWN, logged(
        "Memory access fault by GPU node-1 (Agent handle: 0x1f829860) on address 0x7a8a4be00000. Reason: Page not "
        "present or supervisor privilege.", -6)),
    ("Python", F.HOST_MEMORY, raised("", "MemoryError")),
    ("numpy", F.HOST_MEMORY, raised(
        "Unable to allocate 7.45 GiB for an array with shape (1000, 1000000) and data type float64",
        "numpy._core._exceptions._ArrayMemoryError")),
    ("pytorch#20618", F.HOST_MEMORY, raised(
        "[enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 132426121216 bytes. Error code 12 (Cannot allocate memory)")),
    ("fork", F.HOST_MEMORY, raised("[Errno 12] Cannot allocate memory", "OSError")),
    ("C++", F.HOST_MEMORY, logged("terminate called after throwing an instance of 'std::bad_alloc'", -6)),
    ("pytorch#5040", F.HOST_MEMORY, raised("DataLoader worker (pid 13) is killed by signal: Bus error.")),
    ("pytorch#108861", F.HOST_MEMORY, logged(
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)")),
    ("kernel log", F.HOST_MEMORY, logged("Memory cgroup out of memory: Killed process 4711 (python) total-vm", 137)),
    ("no such package", F.USER_ERROR, raised("No module named 'flash_attn'", "ModuleNotFoundError")),
    ("no request", F.USER_ERROR, raised("device='gpuu'; found no such device", "hetero_airflow.errors.RequestError")),
    ("no such file", F.CODE_ERROR, raised("[Errno 2] No such file or directory: 'a.csv'", "FileNotFoundError")),
    ("a script's own end", F.CODE_ERROR, logged(
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"train.py\", line 3, in <module>\n"
        "[rank0]: KeyError: 'label'\n")),
    ("torchrun's, after its rank's", F.CODE_ERROR, Evidence(
        raised=(Raised("torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "train.py FAILED"),),
        log="TypeError: forward() missing 1 required positional argument: 'x'\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n")),
    ("memory.events", F.HOST_MEMORY, Evidence(exit_code=137, oom_kills=1)),
    ("a helper was killed", F.HOST_MEMORY, Evidence(
        raised=(Raised("RuntimeError", "DataLoader worker (pid(s) 3216) exited unexpectedly"),), oom_kills=1)),
    ("LlamaFactory#7396", F.NETWORK, logged(
        "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) "
        "ran for 600060 milliseconds before timing out.", -6)),
    ("S3 is overloaded", F.NETWORK, raised(
        "hetero_airflow can't read 'fit/train/run/-1/index.json'; found SlowDown (HTTP 503). Try again later.",
        "hetero_airflow.errors.CheckpointStoreUnavailable")),
    ("words of ours and of others", F.NETWORK, raised("NCCL timeout")),
    ("nccl#2076", F.NETWORK, raised(
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a "
        "network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a "
        "remote process exiting prematurely.", "torch.distributed.DistBackendError")),
    ("nccl#975", F.NETWORK, raised(
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "torch.distributed.DistBackendError")),
    ("nccl#1514", F.NETWORK, raised(
        "ncclInternalError: Internal check failed.\nLast error:\nNet : Connection closed by remote peer user<50260>")),
    ("stanford_alpaca#207", F.NETWORK, logged(
        "Last error: NET/IB : Got completion from peer 11.214.147.122<39138> with error 12, opcode 0, len 0")),
    ("RVC#1882, closed", F.NETWORK, raised(
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:10895")),
    ("RVC#1882, reset", F.NETWORK, raised(
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [192.168.70.9]:25: Connection reset by peer")),
    ("vllm#19670", F.NETWORK, raised(
        "The client socket has timed out after 600000ms while trying to connect to (172.17.0.9, 46229).",
        "torch.distributed.DistNetworkError")),
    ("ChatGLM-6B#1232", F.NETWORK, raised(
        "[1] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value store by key '0', "
        "but store->get('0') got error: Socket Timeout")),
    ("vllm-ascend#486", F.NETWORK, raised(
        "OPS function error: HcclAllreduce, error code is 6\nEI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 "
        "Getting socket times out. Reason: Remote Rank did not send the data in time.")),
    ("a shell's word for SIGKILL", F.LOST_WORKER, raised(
        "Bash command failed. The command returned a non-zero exit code 137.",
        "airflow.sdk.exceptions.AirflowException")),
    ("subprocess", F.LOST_WORKER, raised(
        "Command '['./train']' died with <Signals.SIGKILL: 9>.", "subprocess.CalledProcessError")),
    ("nccl#1409, torchrun", F.LOST_WORKER, logged("failed (exitcode: -9) local_rank: 7 (pid: 340264) of binary")),
    ("kill -9", F.LOST_WORKER, Evidence(exit_code=-9, oom_kills=0)),
    ("the host goes down", F.LOST_WORKER, Evidence(exit_code=143)),
    ("no word", F.LOST_WORKER, Evidence(is_gone=True)),
]  # fmt: skip


@pytest.mark.parametrize(("evidence", "expected"), [pytest.param(e, c, id=name) for name, c, e in MESSAGES])
def test_a_real_message_has_its_class(evidence, expected):
    finding = classify(evidence)
    assert finding.failure_class is expected, finding
    assert 0 < len(finding.evidence) <= MAX_EVIDENCE


def test_every_row_is_the_first_for_some_real_message():
    decided = {next(n for n, sign in enumerate(FAILURE_SIGNS) if sign.find(evidence)) for _, _, evidence in MESSAGES}
    missing = [FAILURE_SIGNS[n].source for n in set(range(len(FAILURE_SIGNS))) - decided]
    assert not missing


def test_every_row_names_its_source():
    assert all(sign.source for sign in FAILURE_SIGNS)


ILLEGAL = Raised("RuntimeError", "CUDA error: an illegal memory access was encountered")
OOM = "CUDA out of memory. Tried to allocate 20.00 MiB"


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        # a log may have handled errors; the exception ended the task
        (Evidence(raised=(Raised("KeyError", "'label'"),), log=f"{OOM}; trying half the batch"), "code_error"),
        (Evidence(raised=(Raised("ValueError", "nan"),), log=OOM), "unknown"),
        # the log counts if the exception only says that a process ended
        (Evidence(raised=(Raised("subprocess.CalledProcessError", "Command 'train' ..."),), log=OOM), "device_memory"),
        # a handled user error in the chain does not count, an infrastructure error does
        (Evidence(raised=(Raised("ValueError", ""), Raised("KeyError", "'x'"))), "unknown"),
        (Evidence(raised=(Raised("ValueError", ""), Raised("torch.OutOfMemoryError", OOM))), "device_memory"),
        # a rank that ran out of memory is the cause of its peers' lost connections
        (Evidence(log=f"ncclRemoteError: A call failed\n{OOM}", exit_code=1), "device_memory"),
        (Evidence(log="ncclRemoteError: A call failed\nKeyError: 'label'\n", exit_code=1), "code_error"),
        # a broken GPU answers "out of memory"
        (Evidence(raised=(Raised("RuntimeError", "CUDA error: out of memory"),), xids=(("GPU-1", 48),)), "hardware"),
        # an ambiguous error is the hardware's only with a hardware XID; 13 and 45 are the application's
        (Evidence(raised=(ILLEGAL,), xids=(("GPU-1", 95),)), "hardware"),
        (Evidence(raised=(ILLEGAL,), xids=(("GPU-1", 13), ("GPU-1", 45))), "unknown"),
        # a cgroup may be shared with a neighbour: the task's own error counts
        (Evidence(raised=(Raised("TypeError", ""),), oom_kills=1), "code_error"),
        # an exhausted quota of somebody's API is not the device's memory
        (Evidence(raised=(Raised("grpc.RpcError", "RESOURCE_EXHAUSTED: Quota exceeded for requests"),)), "unknown"),
        (Evidence(raised=(Raised("ConnectionResetError", "[Errno 104] Connection reset by peer"),)), "unknown"),
        # a socket says the same as a mount whose server died; a wrong command is the task's own
        (Evidence(raised=(Raised("OSError", "[Errno 107] Transport endpoint is not connected"),)), "unknown"),
        (Evidence(log='failed to create containerd task: exec: "trian": not found', exit_code=1), "unknown"),
        (Evidence(log='failed to create containerd task: exec: "nvidia-ctk": not found', exit_code=1), "worker"),
        (Evidence(exit_code=-11), "unknown"),
        (Evidence(exit_code=1, log="I have no idea"), "unknown"),
        (Evidence(exit_code=3000), "unknown"),
        (Evidence(), "unknown"),
    ],
)  # fmt: skip
def test_the_cause_comes_before_its_consequences(evidence, expected):
    assert classify(evidence).failure_class == expected


def test_the_evidence_names_the_match_and_its_place():
    assert classify(Evidence(exit_code=1, log=f"a\n{OOM}\nb")) == Classification(
        FailureClass.DEVICE_MEMORY, '"CUDA out of memory" in the log'
    )
    assert classify(Evidence(xids=(("GPU-1", 79),))).evidence == "XID 79, GPU has fallen off the bus on GPU-1"


def test_a_full_disk_is_the_hosts_matter_and_a_gpu_that_does_not_answer_is_the_devices():
    assert classify(Evidence(log="No space left on device")).is_of_host
    assert not classify(Evidence(log="No CUDA GPUs are available")).is_of_host


def test_the_evidence_has_only_the_matched_part_of_a_message():
    secret = "token=hunter2"
    finding = classify(Evidence(raised=(Raised("KeyError", secret), Raised("RuntimeError", f"{OOM} {secret}"))))
    assert secret not in finding.evidence


@given(
    st.lists(st.builds(Raised, st.text(max_size=40), st.text(max_size=300)), max_size=3),
    st.text(max_size=2000),
    st.one_of(st.none(), st.integers(-70, 300)),
)
def test_every_exception_and_log_has_one_class(raised, log, exit_code):
    evidence = Evidence(raised=tuple(raised), log=log, exit_code=exit_code)
    finding = classify(evidence)
    assert finding == classify(evidence)
    assert len(finding.evidence) <= MAX_EVIDENCE


@pytest.mark.parametrize(
    "text", ["nccl", "gloo/transport/", "RESOURCE_EXHAUSTED: ", "A", "A.b", "cuda error ", "Error\n"], ids=repr
)
@pytest.mark.timeout(30)
def test_a_hostile_text_does_not_slow_the_classification(text):
    text *= 200_000 // len(text)
    assert classify(Evidence(log=text, exit_code=1)) == Classification(FailureClass.UNKNOWN, "exit code 1")
    many = tuple(Raised(text, text) for _ in range(40))
    assert classify(Evidence(raised=many)).failure_class is FailureClass.UNKNOWN


@pytest.mark.parametrize(
    ("kind", "failure_class"),
    [
        (notice.Stopped, FailureClass.PREEMPTED),
        (FencedOut, FailureClass.LOST_WORKER),
        (LeaseLost, FailureClass.LOST_WORKER),
        (CheckpointStoreUnavailable, FailureClass.NETWORK),
        (LeaderTimeout, FailureClass.NETWORK),
        (AirflowFailException, FailureClass.USER_ERROR),
        (ModuleNotFoundError, FailureClass.USER_ERROR),
    ],
)
def test_types_are_named_in_the_table_as_they_are_in_the_code(kind, failure_class):
    error = kind.__new__(kind)
    assert classify(Evidence(raised=chain_of(error)[:1])).failure_class is failure_class


def test_torchs_types_are_named_in_the_table_as_they_are_in_torch():
    torch = pytest.importorskip("torch")
    from torch import distributed

    for kind, failure_class in (
        (torch.OutOfMemoryError, FailureClass.DEVICE_MEMORY),
        (distributed.DistNetworkError, FailureClass.NETWORK),
        (distributed.DistStoreError, FailureClass.NETWORK),
    ):
        assert classify(Evidence(raised=chain_of(kind("")))).failure_class is failure_class


def what_it_is(fails):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fails()
    return classify(Evidence(raised=chain_of(caught.value)))


def exits_by(signal):
    code = f"import os; os.kill(os.getpid(), {signal})"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("fails", "failure_class"),
    [
        (lambda: bytearray(2**62), FailureClass.HOST_MEMORY),
        (lambda: np.empty((2**50,)), FailureClass.HOST_MEMORY),
        (lambda: exits_by(9), FailureClass.LOST_WORKER),
        (lambda: exits_by(11), FailureClass.UNKNOWN),
        (lambda: {}["label"], FailureClass.CODE_ERROR),
        (lambda: len(7), FailureClass.CODE_ERROR),
        (lambda: int("seven"), FailureClass.UNKNOWN),
    ],
)
def test_real_failures_have_their_class(fails, failure_class):
    assert what_it_is(fails).failure_class is failure_class


def test_real_failures_of_torch_have_their_class():
    torch = pytest.importorskip("torch")
    assert what_it_is(lambda: torch.empty(2**50)).failure_class is FailureClass.HOST_MEMORY
    store = torch.distributed.TCPStore
    no_server = what_it_is(lambda: store("127.0.0.1", 1, is_master=False, timeout=timedelta(milliseconds=1)))
    assert no_server.failure_class is FailureClass.NETWORK
