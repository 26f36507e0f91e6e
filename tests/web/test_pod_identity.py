"""Agents in pods enrol by their service account's token. The cluster is a test double (no control plane is here): its
answers, and what it is asked, are checked against the published schema of TokenReview."""

import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from kubernetes import config
from kubernetes.config import kube_config
from kubernetes_validate import validate

from hetero_airflow.agent.protocol import ENROLMENT_PATH, POD_AUDIENCE
from hetero_airflow.agent.tokens import public_key_hex
from hetero_airflow.cli.workers.worker import pod_token
from hetero_airflow.errors import HeteroError, IdentityError, StoreUnavailable
from hetero_airflow.store.sql.worker_keys import WorkerKeys
from hetero_airflow.web.pod_identity import PodIdentity, allowed_accounts, check_name, review
from tests.kubernetes_bodies import VERSION

TOKEN = "eyJhbGciOi.eyJhdWQiOi.c2lnbmF0dXJl"
ALLOWED = frozenset({"gpus/hetero-agent"})


def reviewed(**changes):
    """What Kubernetes 1.34 answers to a valid token of a pod."""
    status = {
        "authenticated": True,
        "audiences": [POD_AUDIENCE],
        "user": {
            "username": "system:serviceaccount:gpus:hetero-agent",
            "uid": "0f2b6a0e-5a57-4f0e-a7ad-6a6a3a1f9a51",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:gpus", "system:authenticated"],
            "extra": {
                "authentication.kubernetes.io/pod-name": ["gpu-0"],
                "authentication.kubernetes.io/pod-uid": ["5fd4b1a8-9c6c-4a40-8a3a-2c9d0d2f9c11"],
                "authentication.kubernetes.io/node-name": ["node-7"],
            },
        },
    }
    return status | changes


class Cluster(BaseHTTPRequestHandler):
    status_code, answer, asked = 201, reviewed(), []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        validate(body, VERSION, strict=True)
        self.asked.append((self.path, body))
        reply = body | {"metadata": {}, "status": self.answer}
        validate(reply, VERSION, strict=True)
        text = json.dumps(reply if self.status_code < 300 else {"message": "forbidden"}).encode()
        self.send_response(self.status_code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def use_kubeconfig(monkeypatch, path):
    for module in (config, kube_config):
        monkeypatch.setattr(module, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    Own = type("Own", (Cluster,), {"asked": []})
    server = HTTPServer(("127.0.0.1", 0), Own)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": "of the API server"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
    use_kubeconfig(monkeypatch, tmp_path / "kubeconfig")
    yield Own
    server.shutdown()
    server.server_close()


def test_the_cluster_says_whose_token_it_is(cluster):
    assert review(TOKEN, ALLOWED) == PodIdentity("gpus", "hetero-agent", "gpu-0")
    ((path, body),) = cluster.asked
    assert path == "/apis/authentication.k8s.io/v1/tokenreviews"
    assert body["spec"] == {"token": TOKEN, "audiences": [POD_AUDIENCE]}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"authenticated": False, "error": "token expired"}, "not valid for the audience"),
        (reviewed(audiences=["https://kubernetes.default.svc"]), "not valid for the audience"),
        (reviewed(user={"username": "jane", "extra": {}}), "belongs to no pod"),
        (reviewed(user={"username": "system:serviceaccount:gpus:hetero-agent"}), "belongs to no pod"),
        (
            reviewed(user=reviewed()["user"] | {"username": "system:serviceaccount:other:hetero-agent"}),
            "kubernetes_agents does not name",
        ),
    ],
)
def test_what_it_does_not_vouch_for_is_refused(cluster, answer, problem):
    cluster.answer = answer
    with pytest.raises(IdentityError, match=problem):
        review(TOKEN, ALLOWED)


def test_without_an_allow_list_nobody_is_asked(cluster):
    with pytest.raises(IdentityError, match=r"no service account in \[hetero\] kubernetes_agents"):
        review(TOKEN, frozenset())
    assert cluster.asked == []


@pytest.mark.parametrize("code", [403, 500])
def test_a_cluster_that_refuses_is_named_and_asked_again(cluster, code):
    cluster.status_code = code
    with pytest.raises(StoreUnavailable, match=f"status {code} of the cluster for a TokenReview"):
        review(TOKEN, ALLOWED)


def test_a_cluster_that_is_away_is_asked_again(tmp_path, monkeypatch):
    use_kubeconfig(monkeypatch, tmp_path / "none")
    with pytest.raises(StoreUnavailable, match="no cluster"):
        review(TOKEN, ALLOWED)


def test_the_worker_has_the_name_of_its_pod():
    pod = PodIdentity("gpus", "hetero-agent", "gpu-0")
    check_name(pod, "gpu-0")
    with pytest.raises(IdentityError, match=r"the token of the pod 'gpu-0'\. Start the agent with --name gpu-0"):
        check_name(pod, "gpu-1")


def test_the_allow_list_is_an_option(monkeypatch):
    assert allowed_accounts() == frozenset()
    monkeypatch.setenv("AIRFLOW__HETERO__KUBERNETES_AGENTS", "gpus/hetero-agent, other/agent,")
    assert allowed_accounts() == {"gpus/hetero-agent", "other/agent"}


def enrol(agent, **fields):
    body = {"worker": agent.worker_id, "public_key": public_key_hex(agent.key)} | fields
    return agent.http.post(ENROLMENT_PATH, json=body, headers={"Authorization": f"Bearer {TOKEN}"})


def test_an_agent_in_a_pod_enrols_and_its_next_pod_replaces_the_key(cluster, speaker, engine, monkeypatch):
    monkeypatch.setenv("AIRFLOW__HETERO__KUBERNETES_AGENTS", "gpus/hetero-agent")
    first, second = speaker("gpu-0", enrolled=False), speaker("gpu-0", enrolled=False)
    assert [enrol(first).status_code for _ in range(2)] == [204, 204]
    assert first.report().status_code == 200
    assert enrol(second).status_code == 204
    assert first.beat().status_code == 401
    assert second.report().status_code == 200
    assert enrol(second, worker="gpu-1").status_code == 403
    WorkerKeys(engine).revoke("gpu-0", datetime.now(UTC))
    assert enrol(second).status_code == 403


def test_a_mounted_token_is_read_and_a_missing_one_is_none(tmp_path):
    assert pod_token(tmp_path / "none") == ""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert pod_token(tmp_path / "token") == TOKEN
    with pytest.raises(HeteroError, match="found IsADirectoryError"):
        pod_token(tmp_path)
