import pytest
from airflow._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.observability import stats

from hetero_airflow.executor.housekeeping import emit_demand
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.testing import a_pending, a_worker


class Recorder:
    """Airflow's backend, as far as gauges need it."""

    def __init__(self) -> None:
        self.gauges: dict[str, float] = {}

    def gauge(self, stat: str, value: float, **_: object) -> None:
        self.gauges[stat] = value


@pytest.fixture
def recorder():
    recorder = Recorder()
    stats.initialize(factory=lambda: recorder, export_legacy_names=True)
    yield recorder
    stats.initialize(factory=NoStatsLogger, export_legacy_names=True)


def test_every_known_type_is_reported_each_time(recorder):
    hosts = (a_worker("a"), a_worker("b", labels={"hetero/type": "p4d.24xlarge"}))
    pending = tuple(a_pending(f"r{n}", "gpu:2") for n in range(4))
    emit_demand(Snapshot(0, workers=hosts, pending=(*pending, a_pending("odd", "h100"))))
    assert recorder.gauges == {
        "hetero.wanted_workers.2x-nvidia-a100-sxm4-40gb": 2,
        "hetero.wanted_workers.p4d_24xlarge": 0,
        "hetero.requests.waiting": 5,
        "hetero.requests.unservable": 1,
    }
    emit_demand(Snapshot(1, workers=hosts))
    assert set(recorder.gauges.values()) == {0}
