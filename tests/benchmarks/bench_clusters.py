"""200 tasks on two clusters by two schedulers, while the API server of one cluster is away.

``make bench-clusters SECONDS=300``. Two real control planes (KUBEBUILDER_ASSETS), each with 16 GPUs and simulated
kubelets; half of the tasks want one cluster each, and run for a second. The schedulers share one store, and beat in
turn in one process. Airflow's tables are stood in for. The tasks run twice: without an outage, then with one.
"""

import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from airflow.providers.cncf.kubernetes.executors.kubernetes_executor import KubernetesExecutor
from airflow.utils.state import TaskInstanceState

from tests.control_plane import ASSETS, running_control_plane
from tests.executor.conftest import StandInTasks
from tests.played_nodes import played_nodes
from tests.sqlite_store import SqliteStore
from tests.system.kubernetes.conftest import prepare
from tests.system.kubernetes.leasing import ACCOUNT, grant, options
from tests.system.kubernetes.test_outages import Kubelets, OutageBench
from tests.system.overlaps import overlaps

SITES = ("eu", "us")
NODES, GPUS = 2, 8
TASKS = 100
"""Tasks for each cluster."""


def settings(planes, folder):
    """Environment variables of both schedulers."""
    variables = {"AIRFLOW__HETERO__KUBERNETES_CLUSTERS": json.dumps({site: f"kubernetes_{site}" for site in SITES})}
    for site, plane in zip(SITES, planes, strict=True):
        (folder / site).mkdir()
        grant(plane, folder / site / "credentials")
        variables |= options(plane, folder / site / "credentials", folder / site)
        extra = {"kube_config_path": str(folder / site / "kubeconfig"), "namespace": "airflow"}
        variables[f"AIRFLOW_CONN_KUBERNETES_{site.upper()}"] = json.dumps({"conn_type": "kubernetes", "extra": extra})
    return variables


class Schedulers:
    """Two that share a store, and what they report."""

    def __init__(self):
        tasks, store = StandInTasks(), SqliteStore()
        self.benches = [
            OutageBench(None, 2 * TASKS, lease_timeout_s=15, tasks=tasks, store=store, job=job) for job in ("1", "2")
        ]
        self.rows, self.sites = tasks.rows, {}
        self._last_beats, self.longest_gap_s = [time.monotonic()] * 2, 0.0

    def beat(self):
        """One heartbeat of each."""
        for number, bench in enumerate(self.benches):
            bench.beat()
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - self._last_beats[number])
            self._last_beats[number] = now

    def beat_until(self, holds, timeout_s=240):
        end = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end, "the tasks do not end"
            self.beat()

    def hold(self, round_name):
        """Queue the tasks of both clusters, half with each scheduler."""
        for number in range(TASKS):
            for site in SITES:
                bench = self.benches[number % 2]
                _, id_ = bench.hold(f"{round_name}-{site}-{number}", "gpu", labels={"hetero/site": site})
                self.sites[id_] = site

    def left(self, site):
        """Tasks of a cluster that have not ended."""
        return [id_ for id_, of in self.sites.items() if of == site and self.rows[id_].state != "success"]


def run(schedulers, planes, kubelets, round_name, outage_s):
    """One round; returns the wall time of the tasks of the cluster that stays."""
    runs_before = [len(kubelet.runs) for kubelet in kubelets]
    requests_before = [len(plane.requests(ACCOUNT)) for plane in planes]
    retries_before = sum(len(bench.ends) for bench in schedulers.benches)
    began = time.monotonic()
    schedulers.hold(round_name)
    schedulers.beat()
    schedulers.longest_gap_s = 0.0
    wall_s = {}

    def note():
        for site in SITES:
            if site not in wall_s and not schedulers.left(site):
                wall_s[site] = time.monotonic() - began
        return len(wall_s) == len(SITES)

    if outage_s:
        schedulers.beat_until(lambda: note() or len(kubelets[0].runs) - runs_before[0] >= TASKS // 4)
        planes[0].kill_api_server()
        end = time.monotonic() + outage_s
        schedulers.beat_until(lambda: note() or time.monotonic() >= end, outage_s + 60)
        start = threading.Thread(target=planes[0].start_api_server)
        start.start()
        schedulers.beat_until(lambda: note() or not start.is_alive())
        start.join()
    schedulers.beat_until(note)
    schedulers.beat_until(lambda: not schedulers.benches[0].store.snapshot().leases)
    print(f"{round_name}: {2 * TASKS} tasks; {SITES[0]} away for {outage_s:g} s")
    runs = []
    for site, kubelet, before in zip(SITES, kubelets, runs_before, strict=True):
        of_site = list(kubelet.runs.values())[before:]
        runs += [{**one_run, "ids": [f"{site}/{id_}" for id_ in one_run["ids"]]} for one_run in of_site]
    pods = Counter(one_run["task"] for one_run in runs)
    calls = Counter()
    for plane, before in zip(planes, requests_before, strict=True):
        events = [e for e in plane.requests(ACCOUNT)[before:] if e.get("objectRef", {}).get("resource") == "pods"]
        calls.update(event["verb"] for event in events)
    made = sum(calls[verb] for verb in ("create", "delete", "patch", "get"))
    print(f"  longest gap of heartbeats: {schedulers.longest_gap_s:.2f} s")
    print(f"  pods: {len(runs)}; tasks with a second pod: {sum(count > 1 for count in pods.values())}")
    print(f"  lost tasks: {2 * TASKS - len(pods)}; overlaps on a device: {len(overlaps(runs))}")
    ends = [end for bench in schedulers.benches for end in bench.ends][retries_before:]
    failed = [end for end in ends if end[1] == TaskInstanceState.FAILED]
    print(f"  tasks sent back: {len(schedulers.benches[0].tasks.sent_back)}; failed: {len(failed)}")
    print(f"  wall time: {', '.join(f'{site} {wall_s[site]:.1f} s' for site in SITES)}")
    print(f"  calls per task: {made / (2 * TASKS):.2f}, bar 2.5 ({dict(calls)})", flush=True)
    return wall_s[SITES[1]]


def main(outage_s=300.0):
    """Measure and print."""
    if ASSETS not in os.environ:
        print(
            f"Asked for two control planes of Kubernetes; {ASSETS} is not set. docs/kubernetes.md says how to get one."
        )
        return
    logging.disable(logging.WARNING)  # one line a call of a kubelet, among others
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        planes = []
        for site in SITES:
            (folder / f"plane-{site}").mkdir()
            planes.append(stack.enter_context(running_control_plane(folder / f"plane-{site}")))
            prepare(planes[-1])
        all_nodes = [stack.enter_context(played_nodes(plane.connect())) for plane in planes]
        for nodes in all_nodes:
            for number in range(NODES):
                nodes.add(f"gpu-{number}", GPUS, amounts={"nvidia.com/gpu": str(GPUS), "cpu": "64", "memory": "256Gi"})
        for name, value in settings(planes, folder).items():
            patch.setenv(name, value)
        patch.setattr(KubernetesExecutor, "_get_task_instance_state", lambda *_, **__: TaskInstanceState.SUCCESS)
        patch.setattr(KubernetesExecutor, "_should_create_pod_for_job", lambda *_: True)
        schedulers = Schedulers()
        schedulers.beat_until(lambda: len(schedulers.benches[0].store.snapshot().workers) == NODES * len(SITES))
        kubelets = [stack.enter_context(Kubelets(nodes, schedulers.rows)) for nodes in all_nodes]
        usual_s = run(schedulers, planes, kubelets, "usual", 0)
        away_s = run(schedulers, planes, kubelets, "outage", outage_s)
        print(f"tasks of {SITES[1]}: {away_s / usual_s:.2f} times the wall time without an outage, bar 1.15")
        for bench in schedulers.benches:
            bench.dispatcher.close()
            bench.engine.end()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
