"""What the inventory of a cluster costs whose nodes publish their GPUs as ResourceSlices.

``make bench-slices``. A played API server in a process of its own lists 1,000 nodes with 8 GPUs each. Printed are the
CPU time of the scheduler's process until it has all workers, its CPU time for the change of one slice, and the growth
of its memory.
"""

import multiprocessing
import sys
import time

import psutil
from kubernetes import client

from hetero_airflow.engines.kubernetes.watch.cluster_view import ClusterView
from tests.engines.kubernetes.fake_api import SIGNER, a_node, running_api
from tests.engines.kubernetes.slices.played_slices import a_gpu, a_slice

GPUS = 8


def serve(pipe, number):
    """Be the cluster. For each number that comes, the GPUs of that node get a taint."""
    taint = {"key": "sick", "effect": "NoSchedule"}
    with running_api() as (api, host):
        api.have_claims("gpu.nvidia.com")
        for n in range(number):
            node = a_node(f"node-{n}", gpus=0)
            node["status"] |= {key: {"cpu": "64", "memory": "512Gi"} for key in ("allocatable", "capacity")}
            api.put("nodes", node)
            api.put("resourceslices", a_slice(f"node-{n}", [a_gpu(gpu) for gpu in range(GPUS)]))
        api.log.clear()
        pipe.send(host)
        while (n := pipe.recv()) is not None:
            devices = [a_gpu(gpu, taints=[taint]) for gpu in range(GPUS)]
            api.put("resourceslices", a_slice(f"node-{n}", devices))


def main(number=1000):
    """Measure and print."""
    pipe, far_end = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(far_end, number), daemon=True)
    server.start()
    host = pipe.recv()
    memory, cpu = psutil.Process().memory_info().rss, time.process_time()
    view = ClusterView(
        None, lambda: client.CoreV1Api(client.ApiClient(client.Configuration(host=host))), "default", {}, SIGNER
    )
    view.start()
    assert view.wait(120)
    known = {worker.id: worker for worker in view.poll({}, 0.0).seen}
    print(f"{sum(len(worker.devices) - 1 for worker in known.values()):,} devices of {len(known):,} nodes")
    print(f"first inventory: {time.process_time() - cpu:.2f} s CPU, bar 5 s")
    print(f"memory: {(psutil.Process().memory_info().rss - memory) / 2**20:.0f} MiB more, bar 150 MB")
    worst = 0.0
    for n in range(10):
        cpu = time.process_time()
        pipe.send(n)
        now = 10.0 * (n + 1)
        while not (seen := view.poll(known, now).seen):
            time.sleep(0.01)
        known |= {worker.id: worker for worker in seen}
        worst = max(worst, time.process_time() - cpu)
        assert [worker.id for worker in seen] == [f"node-{n}"], [worker.id for worker in seen]
    print(f"a change: {worst * 1000:.0f} ms CPU at most, bar 50 ms")
    view.stop()
    pipe.send(None)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
