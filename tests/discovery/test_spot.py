"""Notices of the providers, read from a real HTTP server that answers as their documentation shows.

AWS: "Spot Instance interruption notices", "EC2 instance rebalance recommendations" and "Use IMDSv2" in the EC2 User
Guide, https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html

Google: "Detect if a VM was preempted", https://cloud.google.com/compute/docs/instances/create-use-spot, and
"Query live migration notices", https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice

Azure: "Scheduled Events for Linux VMs", https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hetero_airflow.discovery import spot as notices
from hetero_airflow.discovery.spot import (
    AwsNotices,
    AzureNotices,
    GcpNotices,
    NoticeFile,
    NoticeUnreadable,
    SpotWatch,
    check_notice_setting,
    notice_source,
)
from hetero_airflow.errors import SettingsError
from tests.silent_server import silent_server

ACTION, REBALANCE = "/latest/meta-data/spot/instance-action", "/latest/meta-data/events/recommendations/rebalance"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
EVENTS, NAME = "/metadata/scheduledevents", "/metadata/instance/compute/name"
EVICTION = {
    "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    "EventStatus": "Scheduled",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["gpu_0", "gpu_1"],
    "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
    "Description": "",
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}


class Provider:
    """Answers like the metadata servers of all three providers, each of which wants its own header."""

    def __init__(self):
        self.bodies = {}
        self.tokens = []
        self.token_status = 200

    def answer(self, method, path, headers):
        path = path.partition("?")[0]
        if method == "PUT" and path == "/latest/api/token":
            assert headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600"
            self.tokens.append(f"token-{len(self.tokens)}==")
            return self.token_status, self.tokens[-1]
        if path.startswith("/latest/") and headers["X-aws-ec2-metadata-token"] not in self.tokens[-1:]:
            return 401, "Unauthorized"
        if path.startswith("/computeMetadata/") and headers["Metadata-Flavor"] != "Google":
            return 403, "Missing Metadata-Flavor:Google header."
        if path.startswith("/metadata/") and headers["Metadata"] != "true":
            return 400, "Required metadata header not specified"
        body = self.bodies.get(path, (404, "Not Found"))
        return body if isinstance(body, tuple) else (200, body)


@contextmanager
def serving(provider):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = provider.answer(self.command, self.path, self.headers)
            data = body if isinstance(body, bytes) else body.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_PUT = do_GET  # noqa: N815  a name of the standard library

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def provider():
    return Provider()


@pytest.fixture
def url(provider):
    with serving(provider) as url:
        yield url


def test_aws_answers_404_until_there_is_a_notice(provider, url):
    source = AwsNotices(url)
    assert source.read() == ""
    provider.bodies[REBALANCE] = json.dumps({"noticeTime": "2020-10-27T08:22:00Z"})
    assert source.read().startswith("AWS recommends since 2020-10-27T08:22:00Z to leave this spot instance")
    provider.bodies[ACTION] = json.dumps({"action": "terminate", "time": "2017-09-18T08:22:00Z"})
    assert source.read() == "AWS is to terminate this spot instance at 2017-09-18T08:22:00Z"


def test_an_error_at_one_path_of_aws_hides_no_notice_at_the_other(provider, url):
    provider.bodies[ACTION] = (500, "broken")
    provider.bodies[REBALANCE] = json.dumps({"noticeTime": "2020-10-27T08:22:00Z"})
    assert AwsNotices(url).read().startswith("AWS recommends since 2020-10-27T08:22:00Z")


def test_a_token_of_aws_is_used_until_it_ends(provider, url):
    source = AwsNotices(url)
    assert (source.read(), source.read(), len(provider.tokens)) == ("", "", 1)
    provider.tokens.append("a newer one")
    assert (source.read(), len(provider.tokens)) == ("", 3)
    provider.token_status = 403
    provider.tokens.append("a newer one")
    with pytest.raises(NoticeUnreadable, match="HTTP 403, no token"):
        source.read()


def test_google_says_true_once_a_machine_is_preempted(provider, url):
    source = GcpNotices(url)
    assert source.read() == ""
    provider.bodies[PREEMPTED] = "FALSE"
    assert source.read() == ""
    provider.bodies[PREEMPTED] = "TRUE\n"
    assert source.read() == "Google Cloud preempts this spot machine, which ends within 30 s"


@pytest.mark.parametrize(
    ("event", "notice"),
    [
        ("NONE", ""),
        ("MIGRATE_ON_HOST_MAINTENANCE", ""),
        ("TERMINATE_ON_HOST_MAINTENANCE", "Google Cloud stops this machine for maintenance of its host"),
    ],
)
def test_google_announces_a_maintenance_that_ends_the_machine(provider, url, event, notice):
    provider.bodies |= {PREEMPTED: "FALSE", MAINTENANCE: event}
    assert GcpNotices(url).read() == notice


@pytest.mark.parametrize("answer", [(503, "Service Unavailable"), "SOMETHING_NEW", ""])
def test_an_unreadable_answer_of_google_hides_no_notice_at_the_other_path(provider, url, answer):
    provider.bodies |= {PREEMPTED: answer, MAINTENANCE: "TERMINATE_ON_HOST_MAINTENANCE"}
    assert GcpNotices(url).read() == "Google Cloud stops this machine for maintenance of its host"
    provider.bodies |= {PREEMPTED: "TRUE", MAINTENANCE: answer}
    assert GcpNotices(url).read() == "Google Cloud preempts this spot machine, which ends within 30 s"
    provider.bodies[PREEMPTED] = "FALSE"
    with pytest.raises(NoticeUnreadable, match="maintenance-event"):
        GcpNotices(url).read()


def test_an_eviction_of_azure_counts_for_the_machines_that_it_names(provider, url):
    source = AzureNotices(url)
    assert source.read() == ""
    provider.bodies |= {EVENTS: json.dumps({"DocumentIncarnation": 1, "Events": []}), NAME: "GPU_1"}
    assert source.read() == ""
    events = [EVICTION | {"EventType": "Freeze"}, EVICTION | {"Resources": ["gpu_0"]}]
    provider.bodies[EVENTS] = json.dumps({"DocumentIncarnation": 2, "Events": events})
    assert source.read() == ""
    provider.bodies[EVENTS] = json.dumps({"DocumentIncarnation": 3, "Events": [*events, EVICTION]})
    assert source.read() == "Azure evicts this spot machine, not before Mon, 11 Apr 2022 22:26:58 GMT"


GARBAGE = [b"\xff\x00<html>", b"[]", b'"TRUE"', b"{" * 5000, b"x" * 100_000, (500, "broken"), (403, ""), b""]


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("source", [AwsNotices, GcpNotices, AzureNotices])
def test_garbage_is_no_notice_and_is_reported(provider, url, source, body):
    provider.bodies |= dict.fromkeys((ACTION, PREEMPTED, EVENTS), body)
    with pytest.raises(NoticeUnreadable) as caught:
        source(url).read()
    assert len(str(caught.value)) < 500


def test_texts_of_a_provider_are_fit_for_a_log(provider, url):
    provider.bodies[ACTION] = json.dumps({"action": "stop\n<b>" + "x" * 999, "time": ["?"]})
    text = AwsNotices(url).read()
    assert text.isprintable()
    assert "<" not in text
    assert len(text) < 500


@pytest.mark.parametrize("source", [AwsNotices, GcpNotices, AzureNotices])
def test_a_silent_server_is_asked_once_and_for_a_limited_time(source, monkeypatch):
    monkeypatch.setattr(notices, "TIMEOUT_S", 0.1)
    with silent_server() as server:
        with pytest.raises(NoticeUnreadable, match="Timeout"):
            source(f"http://127.0.0.1:{server.port}").read()
        assert len(server.connections) == 1


def test_a_proxy_of_the_environment_is_not_asked(provider, url, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert GcpNotices(url).read() == ""


def test_a_notice_file_counts_while_it_exists(tmp_path):
    source = notice_source(str(tmp_path / "notice"))
    assert source.read() == ""
    (tmp_path / "notice").write_bytes(b"host goes at <12:00>\x1b\nmore")
    assert source.read() == "host goes at 12:00"
    (tmp_path / "notice").write_bytes(b"")
    assert source.read() == f"the notice file {tmp_path / 'notice'} exists"
    with pytest.raises(NoticeUnreadable, match="IsADirectoryError"):
        NoticeFile(tmp_path).read()


@pytest.mark.parametrize("setting", ["amazon", "AWS", "notice.txt", "file:///tmp/x"])
def test_another_setting_is_refused(setting):
    with pytest.raises(SettingsError, match="Use one of aws, gcp, azure, or the path of a notice file"):
        check_notice_setting(setting, "spot_notices")


class Script:
    """A source that gives or raises what a test says."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.is_over = threading.Event()

    def read(self):
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if len(self.steps) == 1:
            self.is_over.set()
        if isinstance(step, Exception):
            raise step
        return step


def test_a_watch_keeps_the_last_notice_while_its_source_fails(caplog):
    failure = NoticeUnreadable("the notices", found="nothing", remedy="Wait")
    source = Script("", "gone at 12:00", failure, failure, ValueError("bug"), failure)
    watch = SpotWatch(source, look_every_s=0.001)
    watch.start()
    assert source.is_over.wait(600)
    watch.close()
    assert watch.notice == "gone at 12:00"
    assert caplog.text.count("can't be used; found nothing") == 1
    assert (watch.is_watching, SpotWatch(None).is_watching, SpotWatch(None).notice) == (True, False, "")


def test_a_watch_does_not_wait_for_a_silent_server(monkeypatch):
    monkeypatch.setattr(notices, "TIMEOUT_S", 3600)
    with silent_server() as server:
        watch = SpotWatch(GcpNotices(f"http://127.0.0.1:{server.port}"))
        watch.start()
        assert (watch.notice, watch.has_looked) == ("", False)
        watch.close()
