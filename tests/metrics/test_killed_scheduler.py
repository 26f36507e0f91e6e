"""The alert on a killed scheduler: of a real Airflow, by what its API server exposes, and by Prometheus' own rules."""

import math
import secrets
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from local_airflow import LocalAirflow
from prometheus_client.parser import text_string_to_metric_families

from hetero_airflow.cli.exports import packaged_text

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        not shutil.which("promtool"), reason="no promtool; on Debian and Ubuntu: apt install prometheus"
    ),
]
TOKEN = secrets.token_hex(16)
LAST, OF_SCHEDULER = "hetero_last_decision_timestamp_seconds", "hetero_scheduler_last_decision_timestamp_seconds"


@pytest.fixture
def airflow(tmp_path: Path) -> Iterator[LocalAirflow]:
    """A scheduler and an API server; no task."""
    (tmp_path / "dags").mkdir()
    settings = {"AIRFLOW__HETERO__METRICS_TOKEN": TOKEN}
    components = ["api-server", "scheduler"]
    with LocalAirflow(tmp_path / "home", tmp_path / "dags", components=components, settings=settings) as made:
        yield made


def scrape(airflow: LocalAirflow) -> dict[str, float]:
    """Series → value, of every metric for the fleet."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx.get(f"{airflow.url}/hetero/metrics", params={"devices": "false"}, headers=headers, timeout=60)
    samples = [s for family in text_string_to_metric_families(answer.raise_for_status().text) for s in family.samples]
    return {s.name + "{" + ",".join(f'{k}="{v}"' for k, v in s.labels.items()) + "}": s.value for s in samples}


def alerts_at(folder: Path, series: dict[str, list[float]], seconds: list[int]) -> str:
    """What promtool says if the alert fires at the last of these times alone, by the rules of the package.

    The last value of each series goes on for ten minutes.
    """
    fires = 'count(ALERTS{alertname="HeteroNoDecision",alertstate="firing"}) or vector(0)'
    inputs = [
        {"series": name, "values": " ".join(map(repr, values)).replace("nan", "_") + f" {values[-1]!r}x600"}
        for name, values in series.items()
    ]
    expected = [
        {"expr": fires, "eval_time": f"{second}s", "exp_samples": [{"value": int(second == seconds[-1])}]}
        for second in seconds
    ]
    test = {"interval": "1s", "input_series": inputs, "promql_expr_test": expected}
    (folder / "alerts.yml").write_text(packaged_text("alerts.yml"))
    (folder / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["alerts.yml"], "evaluation_interval": "15s", "tests": [test]})
    )
    command = ["promtool", "test", "rules", "test.yml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_alert_comes_within_four_minutes_of_the_end_of_a_killed_scheduler(airflow, tmp_path):
    airflow.wait_until(lambda: LAST in str(scrape(airflow)), "the scheduler to decide")
    began, series = time.time(), defaultdict(list)

    def record() -> int:
        """Scrape at the next full second, and return it. promtool's time begins at 0, so times begin there too."""
        second = math.ceil(time.time() - began)
        time.sleep(max(0.0, began + second - time.time()))
        for name, value in scrape(airflow).items():
            missed = [float("nan")] * (second - len(series[name]))
            series[name] += [*missed, value - (began if "_timestamp_seconds" in name else 0)]
        return second

    last = series[f"{LAST}{{}}"]
    while len({value for value in last if not math.isnan(value)}) < 3:  # it grows while the scheduler lives
        alive = record()
    pid = airflow.pid("scheduler")
    airflow.kill("scheduler")
    while record() < alive + 20:
        pass
    (own,) = [name for name in series if name.startswith(OF_SCHEDULER)]
    assert f':{pid}"' in own
    assert repr(series[own]) == repr(last)
    assert len({value for value in last[alive + 5 :] if not math.isnan(value)}) == 1, (
        "it stays when the scheduler is dead"
    )
    assert alerts_at(tmp_path, series, [alive, alive + 100, alive + 240]) == ""
