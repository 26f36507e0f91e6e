import threading

from hetero_airflow.engines.engine import EngineContext
from hetero_airflow.engines.kubernetes.engine import KubernetesEngine
from tests.engines.kubernetes.fake_api import SIGNER


def test_the_engine_starts_no_thread_of_its_own_before_all_executors_have_forked(cluster):
    heir = KubernetesEngine(32)

    def of_heir():
        return {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("hetero")}

    before = set(threading.enumerate())
    heir.start(EngineContext("heir", None, None, dict, lambda: cluster.workers, SIGNER))
    try:
        assert of_heir() == set()
        heir.cluster.watch()
        assert "hetero calls to a cluster" in of_heir()
        assert [worker.id for worker in heir.cluster.poll().seen] == ["gpu-1"]
    finally:
        heir.end()
