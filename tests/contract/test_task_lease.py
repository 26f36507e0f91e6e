from datetime import timedelta

from hetero_airflow.contract.task_lease import TaskLease, lease_claims, task_lease
from hetero_airflow.model.lease import Claim, Lease, LeaseState
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.testing import EPOCH, a_cpu, a_device, a_worker


def a_lease(*claims):
    return Lease(
        id="lease-1", request_id="r1", worker_id="worker-a", alternative=0, claims=claims, token=9,
        state=LeaseState.GRANTED, granted_at=EPOCH, expires_at=EPOCH + timedelta(seconds=60),
    )  # fmt: skip


def test_accelerators_come_in_the_order_of_the_vendors_own_numbers_with_the_cores_beside_them():
    worker = a_worker(devices=(a_cpu(), a_device("GPU-b", index=0), a_device("GPU-a", index=1)))
    claims = (
        Claim(device_id="GPU-a", share_milli=1000, memory_bytes=40 * 2**30),
        Claim(device_id="cpu", share_milli=2000, memory_bytes=0, cores=(3, 4)),
        Claim(device_id="GPU-b", share_milli=1000, memory_bytes=40 * 2**30),
    )
    request = DeviceRequest.parse("a100:2", quota={"cpus": 2})
    assert task_lease(a_lease(*claims), worker, request.alternatives[0]) == TaskLease(
        id="lease-1", token=9, worker="worker-a", vendor="nvidia", kind="gpu", model="a100-sxm4-40gb",
        ids=("GPU-b", "GPU-a"), indexes=(0, 1), memory_bytes=40 * 2**30, share=None, cores=(3, 4),
    )  # fmt: skip


def test_a_cpu_lease_has_its_cores_and_host_memory():
    claims = (Claim(device_id="cpu", share_milli=2000, memory_bytes=2**30, cores=(0, 1)),)
    lease = task_lease(a_lease(*claims), a_worker(), DeviceRequest.parse("cpu:2").alternatives[0])
    assert (lease.kind, lease.count, lease.cores, lease.memory_bytes) == ("cpu", 2, (0, 1), 2**30)


def test_unknown_memory_stays_unknown_in_the_lease_and_the_lease_takes_none_of_it():
    claim = Claim(device_id="GPU-0", share_milli=500, memory_bytes=0)
    worker, request = a_worker(devices=(a_device(memory=None),)), DeviceRequest.parse("gpu:0.5")
    lease = task_lease(a_lease(claim), worker, request.alternatives[0])
    assert (lease.memory_bytes, lease_claims(lease)) == (None, (claim,))


def test_one_simulated_device_makes_the_lease_simulated():
    worker = a_worker(devices=(a_device("GPU-0", simulated=True),))
    claims = (Claim(device_id="GPU-0", share_milli=500, memory_bytes=20 * 2**30),)
    lease = task_lease(a_lease(*claims), worker, DeviceRequest.parse("gpu:0.5").alternatives[0])
    assert (lease.simulated, lease.share, lease.is_cooperative) == (True, 0.5, True)


def test_the_ids_of_a_lease_on_a_kubernetes_node_are_slots():
    worker = a_worker(devices=(a_device("nvidia.com/gpu/0"),), engine="kubernetes")
    claims = (Claim(device_id="nvidia.com/gpu/0", share_milli=1000),)
    alternative = DeviceRequest.parse("gpu").alternatives[0]
    assert task_lease(a_lease(*claims), worker, alternative).is_slot
    assert not task_lease(a_lease(*claims), worker.model_copy(update={"engine": "celery"}), alternative).is_slot
