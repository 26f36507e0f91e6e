import pytest
from airflow._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.observability import stats

from hetero_airflow.checkpoints.object_version import ObjectVersion
from hetero_airflow.executor.housekeeping import emit_demand
from hetero_airflow.model.host_data import HostData, held_name
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.runtime.data.folder import CacheFolder
from hetero_airflow.store.store import WorkerAlive
from hetero_airflow.testing import a_pending, a_worker
from tests.executor.conftest import Bench
from tests.waiting import eventually


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


def test_what_the_schedulers_host_holds_is_stored_and_reaches_the_policy(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__HETERO__DATA_CACHE", str(tmp_path))
    bench, url = Bench(worker=a_worker()), "s3://lake/train/a.csv"
    bench.dispatcher.housekeeping.local_worker = a_worker()
    bench.beat()
    assert bench.store.host_data() == {"worker-a": HostData()}
    folder = CacheFolder(tmp_path)
    file = folder.new_file(url)
    file.write_bytes(b"12345")
    folder.publish(file, url, ObjectVersion("train/a.csv", "1", 5))
    held = dict.fromkeys(map(held_name, ("s3://lake/", "s3://lake/train/", url)), 5)

    def is_stored() -> bool:
        bench.beat(11, times=2)
        return bench.store.host_data() == {"worker-a": HostData(held=held)}

    eventually(is_stored)
    assert bench.dispatcher.context.add_to(bench.store.snapshot()).held_data == {"worker-a": held}
    bench.store.record([WorkerAlive("worker-a", data=HostData())], bench.clock.now())
    bench.beat(11)
    assert bench.store.host_data() == {"worker-a": HostData()}, "what has not changed is not written"


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
