"""The alert rules and the dashboard, with Prometheus' own parser, its promtool, and a real Prometheus."""

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import grafana_dashboard
import httpx
import promql_parser
import pytest
import yaml
from held_port import HeldPort

from hetero_airflow.cli.exports import packaged_text
from hetero_airflow.metrics.catalog import METRICS
from hetero_airflow.metrics.collector import FleetFacts, exposition
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.hold import Hold, HoldKind
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.scheduling.advice.wanted_workers import wanted_workers
from hetero_airflow.store.sql.tallies import Tally, TallyName
from hetero_airflow.testing import EPOCH, a_lease, a_pending, a_worker, leased

HERE = Path(__file__).parent
SUFFIXES = {False: ("",), True: ("_bucket", "_count", "_sum")}
"""What follows the name of a histogram in queries; of other metrics, nothing."""
CREDENTIALS = "Bearer b5c0a6d3f1e24f7c"

A100 = "nvidia/gpu/a100-sxm4-40gb"
RATIOS = {
    ("hetero_placements_total", "hetero_preemptions_total"): 3,
    ('hetero_request_wait_seconds_bucket{le=~"30([.]0)?"}', "hetero_placements_total"): 2 / 3,
    ("hetero_request_wait_seconds_sum", "hetero_request_wait_seconds_count"): 130 / 3,
    ("hetero_lease_duration_seconds_sum", "hetero_lease_duration_seconds_count"): 2000,
    ('hetero_leases_ended_total{outcome="lost"}', "hetero_leases_ended_total"): 1 / 3,
    ('hetero_refusals_total{reason="count"}', "hetero_preemptions_total"): 1,
}
"""Two counters → the ratio of their rates, with the tallies below."""

needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="no prometheus and promtool; on Debian and Ubuntu: apt install prometheus",
)


def rules() -> dict[str, str]:
    """Alert → its query."""
    (group,) = yaml.safe_load(packaged_text("alerts.yml"))["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def panels() -> dict[str, str]:
    """Title → query, of each panel."""
    made = json.loads(packaged_text("dashboard.json"))
    return {panel["title"]: target["expr"] for panel in made["panels"] for target in panel.get("targets", ())}


@pytest.mark.parametrize("query", [*rules().values(), *panels().values()])
def test_each_query_is_valid_and_asks_for_known_metrics(query):
    promql_parser.parse(query)
    asked = set(re.findall(r"hetero_\w+", query))
    assert asked
    assert asked <= {metric.name + suffix for metric in METRICS for suffix in SUFFIXES[metric.kind == "histogram"]}


def test_the_dashboard_is_what_its_tool_writes():
    assert packaged_text("dashboard.json") == grafana_dashboard.make_dashboard()


@needs_prometheus
def test_the_rules_raise_their_alerts_and_no_others(tmp_path):
    (tmp_path / "alerts.yml").write_text(packaged_text("alerts.yml"))
    shutil.copy(HERE / "alerts_test.yml", tmp_path)
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def tallies(scrape: int) -> tuple[Tally, ...]:
    """What was counted until this scrape: each of them finds three more tasks placed, after 10, 20 and 100 s."""
    waited = ((bucket, count * scrape, ms * scrape) for bucket, count, ms in (("30", 2, 30_000), ("300", 1, 100_000)))
    return (
        *(Tally(TallyName.WAITED, A100, *row) for row in waited),
        Tally(TallyName.HELD, A100, "3600", 2 * scrape, 4_000_000 * scrape),
        Tally(TallyName.ENDED, "finished", "", 2 * scrape, 0),
        Tally(TallyName.ENDED, "lost", "", scrape, 0),
        Tally(TallyName.PREEMPTED, "", "", scrape, 0),
        Tally(TallyName.REFUSED, "count", "", scrape, 0),
    )


def fleet(scrape: int) -> FleetFacts:
    """A fleet in which every panel of the dashboard has something to show."""
    hold = Hold("worker-a", "GPU-1", HoldKind.DRAINED, "new fan", EPOCH, "a person undrains it")
    workers = (a_worker(), a_worker("lost", state=WorkerState.LOST))
    snapshot = Snapshot(1, workers=workers, pending=(a_pending("waits", "gpu:2"),))
    snapshot = leased(snapshot, (a_lease("runs", **{"GPU-0": 500}), a_pending("runs", "gpu:0.5")))
    reading = Telemetry(device_id="GPU-0", utilization=0.25, power_w=70, temperature_c=60)
    return FleetFacts(
        replace(snapshot, holds=(hold,)),
        wanted_workers(snapshot),
        {"worker-a": EPOCH},
        {("worker-a", "GPU-0"): reading},
        {"busy": 1},
        EPOCH + timedelta(minutes=1),
        tallies(scrape),
    )


class Handler(BaseHTTPRequestHandler):
    """Answers scrapes with the token."""

    scrapes = count(1)

    def do_GET(self) -> None:
        if self.headers["Authorization"] != CREDENTIALS:
            self.send_error(401)
            return
        text, content_type = exposition(fleet(next(self.scrapes)), self.headers["Accept"], per_device=True)
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes the fleet each second and has the rules."""
    port = HeldPort()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        configuration = {
            "global": {"scrape_interval": "1s"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [{
                "job_name": "hetero_airflow",
                "metrics_path": "/hetero/metrics",
                "authorization": {"credentials": CREDENTIALS.split()[1]},
                "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}],
            }],
        }  # fmt: skip
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        (tmp_path / "alerts.yml").write_text(packaged_text("alerts.yml"))
        address = f"127.0.0.1:{port.number}"
        options = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
        with (tmp_path / "prometheus.log").open("w") as log:
            process = subprocess.Popen(["prometheus", *options], cwd=tmp_path, stdout=log, stderr=log)
        try:
            yield f"http://{address}"
        finally:
            process.kill()
            process.wait()
            server.shutdown()
            port.release()


@needs_prometheus
def test_a_real_prometheus_reads_the_metrics_and_answers_each_panel(prometheus):
    def ask(path: str, **params: str) -> dict:
        # Prometheus answers 503 until it has read its own log, which takes long on a slow disk.
        answer = httpx.get(f"{prometheus}/api/v1/{path}", params=params, timeout=30).raise_for_status()
        return answer.json()["data"]

    def value(query: str) -> float:
        (sample,) = ask("query", query=query)["result"]
        return float(sample["value"][1])

    end = time.monotonic() + 600
    while time.monotonic() < end:
        try:
            if ask("query", query="count_over_time(hetero_build_info[1m]) >= 4")["result"]:
                break
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    (target,) = ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    empty = [title for title, query in panels().items() if not ask("query", query=query)["result"]]
    assert empty == []
    ratios = {pair: value("sum(rate({}[1m])) / sum(rate({}[1m]))".format(*pair)) for pair in RATIOS}
    assert ratios == pytest.approx(RATIOS)
    median = value("histogram_quantile(0.5, rate(hetero_request_wait_seconds_bucket[1m]))")
    assert median == pytest.approx(15 + 1.5 / 2 * 15), "two of three waits are in the bucket from 15 to 30 s"
    (group,) = ask("rules")["groups"]
    assert {rule["name"] for rule in group["rules"]} == set(rules())
