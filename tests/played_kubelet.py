"""A kubelet that is played: pods of a real control plane run as processes of this host, without containers.

It knows what a pod of KubernetesExecutor needs: one container with its arguments, variables of its own and of config
maps. Images, users, mounts, limits and devices are not played.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes import client
from urllib3.exceptions import HTTPError

from tests.played_nodes import PlayedNodes

EVERY_S = 0.3


@contextlib.contextmanager
def played_kubelet(nodes: PlayedNodes, image: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Runs the pods of all nodes that send reports, and ends the processes at the end.

    :param image: environment variables that each image sets
    :param folder: for what the pods write, one file each
    """
    kubelet = PlayedKubelet(nodes, image, folder)
    thread = threading.Thread(target=kubelet.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        kubelet.stopped.set()
        thread.join()
        kubelet.kill_all()


@dataclass(slots=True)
class Run:
    """A pod's process."""

    node: str
    process: subprocess.Popen[bytes]
    kill_at: float = float("inf")


class PlayedKubelet:
    """One step for all nodes. Pods of a node without reports do not change."""

    def __init__(self, nodes: PlayedNodes, image: Mapping[str, str], folder: Path) -> None:
        self.stopped = threading.Event()
        self._nodes, self._image, self._folder = nodes, image, folder
        self._runs: dict[str, Run] = {}
        """Uid of a pod → its process."""

    def run(self) -> None:
        """Until it is stopped."""
        while not self.stopped.wait(EVERY_S):
            with contextlib.suppress(client.ApiException, HTTPError):  # the API server is away: later
                pods = self._nodes.api.list_pod_for_all_namespaces(field_selector="spec.nodeName!=").items
                for pod in pods:
                    if self._nodes.sends_reports(pod.spec.node_name):
                        self._serve(pod)
                self._forget({pod.metadata.uid for pod in pods})

    def kill_all(self) -> None:
        """With all that they started."""
        for run in self._runs.values():
            _signal(run.process, signal.SIGKILL)
            run.process.wait()

    def _serve(self, pod: client.V1Pod) -> None:
        name, namespace, uid = pod.metadata.name, pod.metadata.namespace, pod.metadata.uid
        run, is_ending = self._runs.get(uid), pod.metadata.deletion_timestamp is not None
        code = None if run is None else run.process.poll()
        if run is not None and code is None:
            if is_ending:
                self._end(run, pod.metadata.deletion_grace_period_seconds)
        elif run is not None and pod.status.phase == "Running":
            reason = "Error" if code else "Completed"
            at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            ended = {"terminated": {"exitCode": code if code >= 0 else 128 - code, "reason": reason, "finishedAt": at}}
            self._nodes.put(name, namespace, "Failed" if code else "Succeeded", ended)
        elif is_ending:
            self._nodes.drop(name, namespace)
        elif run is None and pod.status.phase == "Pending":
            self._runs[uid] = Run(pod.spec.node_name, self._start(pod))
            self._nodes.put(name, namespace, "Running", {"running": {}})

    def _end(self, run: Run, grace_s: int) -> None:
        now = time.monotonic()
        if run.kill_at == float("inf"):
            _signal(run.process, signal.SIGTERM)
        run.kill_at = min(run.kill_at, now + grace_s)
        if now >= run.kill_at:
            _signal(run.process, signal.SIGKILL)

    def _forget(self, there: set[str]) -> None:
        """End what runs for pods that are no longer there, as a node does that was away meanwhile."""
        for uid, run in list(self._runs.items()):
            if uid not in there and self._nodes.sends_reports(run.node):
                _signal(run.process, signal.SIGKILL)
                run.process.wait()
                del self._runs[uid]

    def _start(self, pod: client.V1Pod) -> subprocess.Popen[bytes]:
        (container,) = pod.spec.containers
        variables = dict(self._image)
        for source in container.env_from or ():
            config_map = self._nodes.api.read_namespaced_config_map(source.config_map_ref.name, pod.metadata.namespace)
            variables |= config_map.data or {}
        variables |= {
            variable.name: variable.value or "" for variable in container.env or () if variable.value_from is None
        }
        with (self._folder / f"{pod.metadata.name}.log").open("wb") as output:
            return subprocess.Popen(
                [*(container.command or ()), *(container.args or ())], env=variables, cwd=self._folder,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip


def _signal(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
