from hetero_airflow.executor.explanation.live_snapshot import LiveSnapshots
from hetero_airflow.store.store import WorkerSeen
from hetero_airflow.testing import EPOCH, a_worker
from tests.sqlite_store import SqliteStore


def test_workers_of_another_engine_are_left_out_of_decisions_as_in_the_scheduler(monkeypatch):
    store = SqliteStore()
    store.record([WorkerSeen(a_worker("own")), WorkerSeen(a_worker("gpu-1", engine="celery"))], EPOCH)
    assert [worker.id for worker in LiveSnapshots(store).read_for_decisions().workers] == ["own"]
    assert len(LiveSnapshots(store).read().workers) == 2
    monkeypatch.setenv("AIRFLOW__HETERO__ENGINE", "celery")
    assert [worker.id for worker in LiveSnapshots(store).read_for_decisions().workers] == ["gpu-1"]
