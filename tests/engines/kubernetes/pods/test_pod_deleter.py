import pytest

from hetero_airflow.engines.kubernetes.pods.pod_deleter import PodDeleter
from hetero_airflow.engines.kubernetes.pods.pod_override import LEASE_LABEL
from hetero_airflow.engines.kubernetes.watch.leased_pods import read_pod
from tests.engines.kubernetes.fake_api import a_pod, connect, eventually


@pytest.fixture
def deleter(api):
    deleter = PodDeleter(lambda: connect(api))
    deleter.start()
    yield deleter
    deleter.stop()


def made(api, name="p"):
    return read_pod(api.put("pods", a_pod(name, "gpu-1", labels={LEASE_LABEL: "l"})), None)


def test_a_pod_gets_one_delete_for_each_grace_time(api, deleter):
    pod = made(api)
    for grace_s in (None, None, 1, 1):
        deleter.delete(pod, grace_s)
    deleter.delete(made(api, "last"))
    eventually(lambda: api.deletions == [("p", None), ("p", 1), ("last", None)])


def test_another_pod_of_the_name_is_spared(api, deleter):
    pod = made(api)
    api.drop("pods", "p", "default")
    made(api)
    deleter.delete(pod)
    deleter.delete(made(api, "last"))
    eventually(lambda: api.deletions == [("last", None)])
    assert len(api.pods()) == 2


def test_a_failed_delete_of_a_pod_is_repeated_with_the_next_call(api, deleter, caplog):
    pod = made(api)
    api.status = 500
    deleter.delete(pod)
    eventually(lambda: "can't be deleted now: 500" in caplog.text)
    api.status = None
    eventually(lambda: (deleter.delete(pod), api.deletions == [("p", None)])[1])
