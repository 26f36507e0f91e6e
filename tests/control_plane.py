"""A real Kubernetes control plane in a folder of its own: etcd, API server, scheduler and controllers; no kubelet.

TLS, tokens and RBAC are as in a cluster. The programs are those of the folder that KUBEBUILDER_ASSETS names, as for
controller-runtime's envtest.
"""

import contextlib
import json
import os
import secrets
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from held_port import HeldPort
from kubernetes import client, config

ASSETS = "KUBEBUILDER_ASSETS"
PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")

USERS: Mapping[str, tuple[str, str]] = {
    "admin": ("admin", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "controllers": ("system:kube-controller-manager", ""),
}
"""Who has a token of the server's own: name and group."""

CONTROLLERS = (
    "serviceaccount", "serviceaccount-token", "root-ca-cert-publisher", "namespace", "garbagecollector",
    "nodelifecycle", "podgc", "disruption", "resourcequota",
)  # fmt: skip

SILENT_S = 8
"""A node without reports for this many seconds is not ready; 40 by default."""

AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, userGroups: ["system:serviceaccounts:airflow"]}]
"""


@contextlib.contextmanager
def running_control_plane(folder: Path) -> "Iterator[ControlPlane]":
    """One that is ended with all it started."""
    plane = ControlPlane(folder)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


class ControlPlane:
    """Listens on 127.0.0.1.

    :param folder: empty; for its data, keys and logs
    """

    def __init__(self, folder: Path) -> None:
        self._programs = _programs()
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._held = [HeldPort() for _ in range(3)]
        self._etcd, self._peer, self._port = (port.number for port in self._held)
        self.url = f"https://127.0.0.1:{self._port}"
        self._tokens = {name: secrets.token_urlsafe(24) for name in USERS}

    def start(self) -> None:
        """Returns once pods can be made."""
        rows = (f"{self._tokens[name]},{user},{user},{group}\n" for name, (user, group) in USERS.items())
        (self._folder / "tokens.csv").write_text("".join(rows))
        (self._folder / "audit.yaml").write_text(AUDIT)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self._folder / "accounts.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
        data = [f"--data-dir={self._folder / 'etcd'}", f"--initial-cluster=default=http://127.0.0.1:{self._peer}"]
        peer = [
            f"--{name}=http://127.0.0.1:{self._peer}" for name in ("listen-peer-urls", "initial-advertise-peer-urls")
        ]
        client_urls = [
            f"--{name}=http://127.0.0.1:{self._etcd}" for name in ("listen-client-urls", "advertise-client-urls")
        ]
        self._launch("etcd", [*data, *peer, *client_urls])
        self.start_api_server()
        quiet = ["--leader-elect=false", "--secure-port=0"]
        options = subprocess.run(
            [self._programs["kube-scheduler"], "--help"], capture_output=True, text=True, check=True
        )
        if " --port " in options.stdout:  # until 1.23: without TLS, on all interfaces
            quiet.append("--port=0")
        self._launch("kube-scheduler", [f"--kubeconfig={self._kubeconfig_of('scheduler')}", *quiet])
        controllers = [
            f"--kubeconfig={self._kubeconfig_of('controllers')}", *quiet, f"--controllers={','.join(CONTROLLERS)}",
            "--use-service-account-credentials", f"--service-account-private-key-file={self._folder / 'accounts.key'}",
            f"--root-ca-file={self.certificate}", f"--node-monitor-grace-period={SILENT_S}s",
            "--node-monitor-period=1s", "--min-resync-period=1h",
        ]  # fmt: skip
        self._launch("kube-controller-manager", controllers)
        self._wait("controllers", self._has_accounts)

    def start_api_server(self) -> None:
        """Returns when it answers; the same address, certificate and data as before, if there was one before."""
        options = {
            "etcd-servers": f"http://127.0.0.1:{self._etcd}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",
            "secure-port": self._port,
            "cert-dir": self._folder / "certificates",
            "token-auth-file": self._folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.0.0.0/24",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": self._folder / "accounts.key",
            "service-account-signing-key-file": self._folder / "accounts.key",
            "audit-policy-file": self._folder / "audit.yaml",
            "audit-log-path": self._folder / "audit.log",
        }
        self._launch("kube-apiserver", [f"--{name}={value}" for name, value in options.items()])
        self._wait("API server", self._is_ready)

    def kill_api_server(self) -> None:
        """``kill -9``."""
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    @contextlib.contextmanager
    def frozen_api_server(self) -> Iterator[None]:
        """It accepts connections and answers nothing."""
        process = self._processes["kube-apiserver"]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End all, the last started first."""
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        for port in self._held:
            port.release()

    @property
    def certificate(self) -> Path:
        """That of the API server, which signs for itself."""
        return self._folder / "certificates" / "apiserver.crt"

    def kubeconfig(self, token: str | None = None) -> dict[str, Any]:
        """By which the server is reached; as its administrator, where no token is given."""
        server = {"server": self.url, "certificate-authority": str(self.certificate)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": server}],
            "users": [{"name": "u", "user": {"token": token or self._tokens["admin"]}}],
        }

    def connect(self, token: str | None = None) -> client.ApiClient:
        """A client with that token, or the administrator's."""
        return config.new_client_from_config_dict(self.kubeconfig(token))

    def token(self, account: str, namespace: str = "airflow", secret: str | None = None) -> str:
        """One of a service account, good for an hour, or until the given Secret is deleted."""
        spec: dict[str, Any] = {"expirationSeconds": 3600, "audiences": ["https://kubernetes.default.svc"]}
        if secret is not None:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Secret", "name": secret}
        body = {"spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(json.loads(self._get(path, body))["status"]["token"])

    def requests(self, account: str) -> list[dict[str, Any]]:
        """What a service account of ``airflow`` has asked, in the words of the audit log, oldest first."""
        with contextlib.suppress(FileNotFoundError):
            *lines, _ = (self._folder / "audit.log").read_text().split("\n")  # the last one may be half written
            events = map(json.loads, lines)
            return [
                event for event in events if event["user"]["username"] == f"system:serviceaccount:airflow:{account}"
            ]
        return []

    def _launch(self, program: str, arguments: Sequence[str]) -> None:
        with (self._folder / f"{program}.log").open("ab") as output:
            self._processes[program] = subprocess.Popen(
                [self._programs[program], *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                cwd=self._folder, env={"PATH": os.defpath},
            )  # fmt: skip

    def _wait(self, what: str, holds: Any, timeout_s: float = 120) -> None:
        end = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(OSError):
                if holds():
                    return
            for program, process in self._processes.items():
                if process.poll() is not None or time.monotonic() > end:
                    log = (self._folder / f"{program}.log").read_text(errors="replace")[-2000:]
                    pytest.fail(f"The {what} did not come up; {program} ({process.poll()}): {log}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        return self._get("/readyz") == "ok"

    def _has_accounts(self) -> bool:
        return bool(json.loads(self._get("/api/v1/namespaces/default/serviceaccounts/default"))["metadata"])

    def _get(self, path: str, body: Any = None) -> str:
        headers = {"Authorization": f"Bearer {self._tokens['admin']}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        trust = ssl.create_default_context(cafile=str(self.certificate))
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
            return str(answer.read().decode())

    def _kubeconfig_of(self, user: str) -> Path:
        path = self._folder / f"{user}.kubeconfig"
        path.write_text(json.dumps(self.kubeconfig(self._tokens[user])))
        return path


def _programs() -> dict[str, Path]:
    folder = os.environ.get(ASSETS)
    if folder is None:
        pytest.skip(
            f"no control plane of Kubernetes: set {ASSETS} to a folder with {', '.join(PROGRAMS)}; `setup-envtest use "
            "-p path` fetches the first two; the others are in the same release of Kubernetes, to be put beside them"
        )
    programs = {name: Path(folder) / name for name in PROGRAMS}
    missing = [name for name, path in programs.items() if not path.is_file()]
    if missing:
        pytest.fail(f"{ASSETS} is {folder}; {', '.join(missing)} are not there. Put them beside the others")
    return programs
