"""An API server of one namespace, over real HTTP. It keeps the objects that it gets, and pods end as a test says."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SCHEDULED = [{"type": "PodScheduled", "status": "True"}]


def a_status(phase: str, state: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The status of a pod whose container is in that state."""
    container = {"name": "base", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {"phase": phase, "conditions": SCHEDULED, "containerStatuses": [container], **more}


def ended(code: int, word: str = "Error", /, **more: Any) -> dict[str, Any]:
    """The status of a pod whose container ended with that exit code."""
    return a_status("Failed" if code else "Succeeded", {"terminated": {"exitCode": code, "reason": word}}, **more)


@dataclass
class FakeCluster:
    """What it has been sent, and what it answers."""

    status: dict[str, Any] = field(default_factory=lambda: ended(0, "Completed"))
    """Of every pod."""
    template_answer: int = 201
    knows_sharing: bool = True
    """Whether selectors may ask if a device can be shared, as in Kubernetes 1.36."""
    device_classes: list[str] = field(default_factory=lambda: ["gpu.nvidia.com", "mig.nvidia.com", "gpu.amd.com"])
    pod_refusal: dict[str, Any] | None = None
    """The answer to a new pod, if it is refused."""
    is_forgetful: bool = False
    """Whether pods are gone once they have been listed."""
    templates: list[dict[str, Any]] = field(default_factory=list)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Code and body of an answer."""
        parts = path.strip("/").split("/")
        if "resource.k8s.io" in parts:
            return self.answer_about_claims(method, parts, body)
        if parts[-1] == "pods" and method == "POST":
            if self.pod_refusal is not None:
                return self.pod_refusal["code"], self.pod_refusal
            self.created.append(body)
            metadata = {**body["metadata"], "uid": f"uid-{len(self.created)}"}
            self.pods[body["metadata"]["name"]] = {**body, "metadata": metadata, "status": self.status}
            return 201, self.pods[body["metadata"]["name"]]
        if parts[-1] == "pods":
            pods = list(self.pods.values())
            if self.is_forgetful:
                self.pods.clear()
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}
        if parts[-1] == "events":
            return 200, {"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": self.events}
        if "pods" in parts:
            name = parts[parts.index("pods") + 1]
            if name not in self.pods:
                return 404, {"kind": "Status", "code": 404, "reason": "NotFound"}
            if parts[-1] == "log":
                return 200, "a line\n"
            if method == "DELETE":
                self.deleted.append(name)
            return 200, self.pods[name] if method != "DELETE" else self.pods.pop(name)
        return 404, {"kind": "Status", "code": 404}

    def answer_about_claims(self, method: str, parts: list[str], body: Any) -> tuple[int, Any]:
        """Answers for device classes and templates of claims."""
        if parts[-1] == "deviceclasses":
            items = [{"metadata": {"name": name}, "spec": {}} for name in self.device_classes]
            kind = {"kind": "DeviceClassList", "apiVersion": "resource.k8s.io/v1", "metadata": {}}
            return (200, {**kind, "items": items}) if self.device_classes else (403, {"kind": "Status", "code": 403})
        if method == "POST":
            if not self.knows_sharing and "allowMultipleAllocations" in json.dumps(body):
                message = "ERROR: <input>:1:8: undefined field 'allowMultipleAllocations'"
                return 422, {"kind": "Status", "code": 422, "reason": "Invalid", "message": message}
            self.templates.append(body)
            return self.template_answer, body
        changed = next((t for t in self.templates if t["metadata"]["name"] == parts[-1]), None)
        if changed is None:
            return 404, {"kind": "Status", "code": 404}
        if method == "PATCH":
            changed["metadata"] |= body["metadata"]
        if method == "DELETE":
            self.templates.remove(changed)
        return 200, changed


@contextmanager
def running_cluster(folder: Path) -> Iterator[tuple[FakeCluster, str]]:
    """A cluster, and the path of a kubeconfig that reaches it."""
    cluster = FakeCluster()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(length) if length else b""
            body = json.loads(text) if text.startswith(b"{") else None
            code, value = cluster.answer(self.command, urlsplit(self.path).path, body)
            data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(value, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815  the names that http.server asks for

        def log_message(self, *_: Any) -> None:
            """Nothing: requests are no news."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    host = f"http://127.0.0.1:{server.server_address[1]}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": host}}],
        "users": [{"name": "u", "user": {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    try:
        yield cluster, str(path)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
