"""The part of an API server that the engine talks to, over real HTTP: lists in pages, watches, and its faults."""

import copy
import hashlib
import itertools
import json
import tempfile
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL, seal_pod
from hetero_airflow.testing import a_signer
from tests.kubernetes_bodies import check_body, check_pod


class FakeApi:
    """Nodes and pods. Each change has a new resourceVersion, and watches get it."""

    def __init__(self):
        self.objects = {"nodes": {}, "pods": {}}
        self.log = []
        """(version, kind, object before, object after)"""
        self.version = itertools.count(1000)
        self.newest = 1000
        self.oldest = 0
        """Watches from before this are answered with 410."""
        self.changed = threading.Condition()
        self.status = None
        """What every request is answered with, if not with what it asks for."""
        self.post_status = None
        """What every request that makes an object is answered with, if not None."""
        self.token = None
        """Requests with another one are answered with 401, if it is not None."""
        self.refusals = {}
        self.refused_at = 0.0
        """Start of a pod's name → status and headers with which it is not made."""
        self.list_status = None
        """What every list is answered with, if not None."""
        self.lost_answers = 0
        """So many objects are made without an answer: the connection is cut."""
        self.forbidden = set()
        """Paths that are answered with 403."""
        self.delay_s = 0.0
        self.requests = []
        self.deletions = []
        self.mark_every_s = 0.2
        """How often a watch without news gets a bookmark."""
        self.marked = 0
        """The version of the newest bookmark."""
        self.thawed = threading.Event()
        self.thawed.set()
        self.generation = 0
        """Watches of an older one are cut."""
        self.is_expiring = False
        """Whether watches that are cut are told before that their version is too old."""

    def have_claims(self, *device_classes):
        """From now on it is a cluster with dynamic resource allocation."""
        self.objects |= {
            kind: {}
            for kind in ("resourceslices", "resourceclaims", "deviceclasses", "resourceclaimtemplates", "events")
        }
        for name in device_classes:
            self.put("deviceclasses", {"metadata": {"name": name}, "spec": {}})

    def put(self, kind, body, status=None):
        """Make or replace an object."""
        with self.changed:
            body = copy.deepcopy(body)
            key = (body["metadata"].get("namespace", ""), body["metadata"]["name"])
            before = self.objects[kind].get(key)
            body["metadata"].setdefault("uid", before["metadata"]["uid"] if before else f"uid-{next(self.version)}")
            if status is not None:
                body["status"] = status
            self.newest = next(self.version)
            body["metadata"]["resourceVersion"] = str(self.newest)
            self.objects[kind][key] = body
            self._tell(kind, before, body)
            return body

    def drop(self, kind, name, namespace=""):
        """Remove an object for good."""
        with self.changed:
            before = self.objects[kind].pop((namespace, name))
            self.newest = next(self.version)
            last = copy.deepcopy(before)
            last["metadata"]["resourceVersion"] = str(self.newest)
            self._tell(kind, last, None)

    def set_status(self, name, status, namespace="default", **metadata):
        """A pod as its kubelet sees it."""
        pod = copy.deepcopy(self.objects["pods"][namespace, name])
        pod["metadata"] |= metadata
        return self.put("pods", pod, status)

    def bind(self, name, node, namespace="default"):
        """What the scheduler does."""
        pod = copy.deepcopy(self.objects["pods"][namespace, name])
        pod["spec"]["nodeName"] = node
        return self.put("pods", pod)

    def compact(self):
        """Forget all old versions, as etcd does, and cut the watches."""
        self.oldest = self.newest = next(self.version)
        self.cut()

    def cut(self):
        """Cut the connections of all watches in the middle."""
        with self.changed:
            self.generation += 1
            self.changed.notify_all()

    @contextmanager
    def frozen(self):
        """Accept connections and answer nothing, as a stopped process does."""
        self.thawed.clear()
        try:
            yield
        finally:
            self.thawed.set()

    def pods(self):
        """Those that are there."""
        return list(self.objects["pods"].values())

    def _tell(self, kind, before, after):
        self.log.append((self.newest, kind, before, after))
        self.changed.notify_all()


DISCOVERY = {
    "/version/": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [{"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["list"]}],
    },
}
"""What the dynamic client of KubernetesExecutor asks first."""


def matches(query, item):
    """Whether an object is meant by the selectors of a query."""
    if item is None:
        return False
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        name, _, value = term.partition("!=")
        if "!=" in term:
            if labels.get(name) == value:
                return False
        elif "=" in term:
            name, _, value = term.partition("=")
            if labels.get(name) != value:
                return False
        elif term not in labels:
            return False
    fields = {"spec.nodeName": item.get("spec", {}).get("nodeName", ""),
              "status.phase": item.get("status", {}).get("phase", ""),
              "metadata.name": item["metadata"]["name"],
              "involvedObject.uid": item.get("involvedObject", {}).get("uid", ""),
              "reason": item.get("reason", "")}  # fmt: skip
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        name, _, value = term.partition("!=") if "!=" in term else term.partition("=")
        if (fields[name] == value) == ("!=" in term):
            return False
    return True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    @property
    def api(self):
        return self.server.api

    def _serve(self):
        generation = self.api.generation  # before all else: a cut that comes from here on is one of this connection
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.api.requests.append((self.command, url.path, query))
        self.api.thawed.wait()
        time.sleep(self.api.delay_s)
        parts = url.path.strip("/").split("/")[2:]
        if url.path.startswith("/apis/resource.k8s.io/"):
            parts = parts[1:]
        namespace = ""
        if parts[:1] == ["namespaces"]:
            namespace, parts = parts[1], parts[2:]
        if self.api.token is not None and self.headers.get("Authorization") != f"Bearer {self.api.token}":
            self._answer(401, {"kind": "Status", "code": 401, "reason": "Unauthorized"})
            return
        refusal = self.api.status or (self.api.post_status if self.command == "POST" else None)
        if self.command == "GET" and "watch" not in query and url.path not in DISCOVERY:
            refusal = refusal or self.api.list_status
        if refusal is not None or url.path in self.api.forbidden:
            code = refusal or 403
            self._answer(code, {"kind": "Status", "code": code, "reason": "Odd", "message": f"it is {code}"})
        elif url.path in DISCOVERY:
            self._answer(200, DISCOVERY[url.path])
        elif not parts and "resourceslices" in self.api.objects:
            self._answer(200, {"kind": "APIResourceList", "groupVersion": "resource.k8s.io/v1", "resources": []})
        elif not parts or parts[0] not in self.api.objects:
            self._answer(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
        elif query.get("watch") in ("true", "True"):
            self._watch(parts[0], namespace, query, generation)
        elif len(parts) == 1 and self.command == "GET":
            self._list(parts[0], namespace, query)
        elif parts[0] == "resourceclaimtemplates":
            self._template(namespace, parts, body)
        elif parts == ["pods"]:
            check_pod(body)
            name = body["metadata"]["name"]
            for start, (code, headers) in self.api.refusals.items():
                if name.startswith(start):
                    self.api.refused_at = time.monotonic()
                    self._answer(code, {"kind": "Status", "code": code, "message": f"it is {code}"}, headers)
                    return
            if (namespace, body["metadata"]["name"]) in self.api.objects["pods"]:
                self._answer(409, {"kind": "Status", "code": 409, "reason": "AlreadyExists"})
                return
            pod = self.api.put("pods", body, {"phase": "Pending"})
            if self.api.lost_answers:
                self.api.lost_answers -= 1
                self.close_connection = True
                return
            self._answer(201, pod)
        else:
            self._one(namespace, parts[1], body)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _template(self, namespace, parts, body):
        if self.command == "POST":
            check_body(body, "V1ResourceClaimTemplate")
            self._answer(201, self.api.put(parts[0], body))
            return
        template = self.api.objects[parts[0]].get((namespace, parts[1]))
        if template is None:
            self._answer(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
            return
        if self.command == "PATCH":
            template["metadata"] |= body["metadata"]
        else:
            self.api.drop(parts[0], parts[1], namespace)
        self._answer(200, template)

    def _one(self, namespace, name, body):
        pod = copy.deepcopy(self.api.objects["pods"].get((namespace, name)))
        if pod is None:
            self._answer(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
        elif self.command == "PATCH":
            pod["metadata"]["labels"] |= body["metadata"]["labels"]
            self._answer(200, self.api.put("pods", pod))
        elif self.command == "DELETE":
            uid = ((body or {}).get("preconditions") or {}).get("uid", pod["metadata"]["uid"])
            if uid != pod["metadata"]["uid"]:
                self._answer(409, {"kind": "Status", "code": 409, "reason": "Conflict"})
                return
            grace = (body or {}).get("gracePeriodSeconds")
            assert grace != 0
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            stored = self.api.put("pods", pod)
            if not pod["spec"].get("nodeName") or pod["status"]["phase"] in ("Succeeded", "Failed"):
                self.api.drop("pods", name, namespace)
            self.api.deletions.append((name, grace))
            self._answer(200, stored)
        else:
            self._answer(200, pod)

    def _list(self, kind, namespace, query):
        with self.api.changed:
            objects, newest = sorted(self.api.objects[kind].items()), self.api.newest
        items = [item for (where, _), item in objects if namespace in ("", where) and matches(query, item)]
        start, limit = int(query.get("continue", "0")), int(query.get("limit", "0")) or len(items) + 1
        metadata = {"resourceVersion": str(newest)}
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        name = {"nodes": "NodeList", "pods": "PodList"}.get(kind, "List")
        page = items[start : start + limit]
        self._answer(200, {"kind": name, "apiVersion": "v1", "metadata": metadata, "items": page})

    def _watch(self, kind, namespace, query, generation):
        since = int(query.get("resourceVersion") or 0)
        if since and since < self.api.oldest:
            self._stream()
            self._expire()
            return
        self._stream()
        sent = 0
        while True:
            with self.api.changed:
                self.api.changed.wait_for(lambda sent=sent: self._has_events(sent, generation), self.api.mark_every_s)
                events, sent = self.api.log[sent:], len(self.api.log)
                is_cut = self.api.generation != generation
            self.api.thawed.wait()
            if is_cut and self.api.is_expiring:
                self._expire()
                return
            if is_cut or self.server.is_over:
                self.close_connection = True
                self.wfile.write(b'5\r\n{"typ')  # in the middle of an event
                return
            for version, what, before, after in events:
                known, wanted = matches(query, before), matches(query, after)
                where = (after or before)["metadata"].get("namespace", "")
                if version <= since or what != kind or namespace not in ("", where) or not (known or wanted):
                    continue
                word = "MODIFIED" if known and wanted else "ADDED" if wanted else "DELETED"
                self._chunk({"type": word, "object": after if after is not None else before})
            if not events and query.get("allowWatchBookmarks"):
                self.api.marked = self.api.newest
                mark = {"kind": "X", "apiVersion": "v1", "metadata": {"resourceVersion": str(self.api.newest)}}
                self._chunk({"type": "BOOKMARK", "object": mark})

    def _expire(self):
        message = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        self._chunk({"type": "ERROR", "object": message})
        self._chunk(None)

    def _has_events(self, sent, generation):
        return len(self.api.log) > sent or self.api.generation != generation or self.server.is_over

    def _stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, value):
        data = b"" if value is None else json.dumps(value).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _answer(self, code, value, headers=None):
        data = json.dumps(value).encode()
        self.send_response(code)
        for header in (headers or {}).items():
            self.send_header(*header)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    is_over = False
    daemon_threads = True

    def handle_error(self, *_):
        """A client that went away, as watchers do."""


@contextmanager
def running_api(port=0):
    """An API server, and its address."""
    server = _Server(("127.0.0.1", port), Handler)
    server.api = FakeApi()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    host = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield server.api, host
    finally:
        server.is_over = True
        server.shutdown()
        server.server_close()
        thread.join()
        # what the client of Kubernetes has noted about the server at this address
        note = f"osrcp-{hashlib.md5(host.encode()).hexdigest()}.json"
        Path(tempfile.gettempdir(), note).unlink(missing_ok=True)


def connect(api):
    """A client of the server at `api.host`."""
    return client.CoreV1Api(client.ApiClient(client.Configuration(host=api.host)))


def kubeconfig(host):
    """A configuration that reaches a server."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": host}}],
        "users": [{"name": "u", "user": {}}],
    }


def executor_options(host, folder):
    """Environment variables by which KubernetesExecutor makes pods there."""
    template, config = folder / "template.yaml", folder / "config"
    template.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: template}\n"
        "spec: {restartPolicy: Never, containers: [{name: base, image: airflow}]}\n"
    )
    config.write_text(json.dumps(kubeconfig(host)))
    options = {
        "IN_CLUSTER": "False", "CONFIG_FILE": str(config), "NAMESPACE": "default",
        "POD_TEMPLATE_FILE": str(template), "WORKER_PODS_CREATION_BATCH_SIZE": "16",
    }  # fmt: skip
    return {f"AIRFLOW__KUBERNETES_EXECUTOR__{name}": value for name, value in options.items()}


def a_node(name="gpu-1", gpus=2, ready="True", **spec):
    """A node with GPUs, ready or not."""
    amounts = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": str(gpus)}
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}
    conditions = [{"type": "Ready", "status": ready, "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]
    status = {"allocatable": amounts, "capacity": amounts, "conditions": conditions}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}


OOM_KILLED = {
    "phase": "Failed",
    "containerStatuses": [{
        "name": "base", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:30Z"}},
    }],
}  # fmt: skip
"""Status of a pod all of whose processes the kernel has killed for want of memory."""


SIGNER = a_signer()
"""Of the Airflow that makes the pods of leases."""


def a_pod(
    name, node=None, gpus=0, labels=None, namespace="default", owner=None, cpu=None, annotations=None, lease=None
):
    """A pod that somebody made.

    :param lease: for which Airflow made it
    """
    amounts = {**({"nvidia.com/gpu": str(gpus)} if gpus else {}), **({"cpu": cpu} if cpu else {})}
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}, "annotations": annotations or {}}
    if lease:
        pod = SimpleNamespace(namespace=namespace, name=name, annotations=annotations)
        seal_pod(pod, lease, SIGNER)
        metadata |= {"labels": {**(labels or {}), LEASE_LABEL: lease}, "annotations": pod.annotations}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "o", "apiVersion": "apps/v1", "uid": "u"}]
    spec = {"containers": [{"name": "base", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]}
    return {
        "metadata": metadata,
        "spec": spec | ({"nodeName": node} if node else {}),
        "status": {"phase": "Running" if node else "Pending"},
    }
