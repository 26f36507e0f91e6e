import pytest

from hetero_airflow.checkpoints.filesystem import FilesystemStore
from hetero_airflow.checkpoints.loading import read_index
from hetero_airflow.contract.data_settings import DataSettings
from hetero_airflow.errors import InvalidCheckpoint, SettingsError
from hetero_airflow.runtime import checkpoint, checkpoint_session
from hetero_airflow.runtime.checkpoint_session import read_published
from hetero_airflow.settings import DATA_VARIABLE


def published_entry(place, store_folder, step):
    entry = next(e for e in read_index(FilesystemStore(store_folder), place.path).entries if e.step == step)
    return {"url": place.url, "path": place.path, "key": entry.key, "digest": entry.digest, "step": step}


def saved(begin, *steps):
    session = begin(token=1)
    for step in steps:
        session.save(step, {"weights": step}, metrics={"accuracy": 0.5}, files=None, wait=True, final=False)


def test_the_given_checkpoint_is_opened_even_if_there_are_newer_ones(begin, place, tmp_path):
    saved(begin, 3, 5)
    own_place = place.model_copy(update={"path": "other/task/run/-1"})
    opened = read_published(own_place, published_entry(place, tmp_path / "store", 3))
    assert (opened.step, opened.state, opened.metrics) == (3, {"weights": 3}, {"accuracy": 0.5})


def test_a_deleted_checkpoint_is_an_error_that_says_what_to_do(begin, place, tmp_path):
    saved(begin, 1)
    first = published_entry(place, tmp_path / "store", 1)
    saved(begin, 3, 5, 7)
    with pytest.raises(InvalidCheckpoint, match=r"deleted.*keep_last"):
        read_published(place, first)


@pytest.mark.parametrize(
    "change", [{"path": "../../etc"}, {"path": "/etc"}, {"url": "file:///a/../b"}, {"key": "../x"}]
)
def test_a_name_outside_of_the_store_is_refused(begin, place, tmp_path, change):
    saved(begin, 1)
    with pytest.raises(ValueError, match="found"):
        read_published(place, published_entry(place, tmp_path / "store", 1) | change)


def test_another_kind_of_store_is_asked_at_the_endpoint_of_the_connection(place, monkeypatch):
    minio = "https://minio.example:9000"
    monkeypatch.setenv(DATA_VARIABLE, DataSettings(own_endpoints={"s3": minio}, endpoints=(minio,)).model_dump_json())
    opened = []

    def refuse(place):
        opened.append((place.url, place.endpoint, place.endpoints))
        raise SettingsError("the store", found="enough", remedy="End here")

    monkeypatch.setattr(checkpoint_session, "open_store", refuse)
    with pytest.raises(SettingsError, match="enough"):
        read_published(place, {"url": "s3://models", "path": "a/b/c/-1", "key": "k", "digest": "d"})
    assert opened == [("s3://models", minio, (minio,))]


@pytest.mark.parametrize("nonsense", [None, {}, {"step": 3}, "path"])
def test_a_value_that_is_not_from_a_sensor_is_refused(nonsense, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidCheckpoint, match="Pass the value that the sensor returned"):
        checkpoint.open_published(nonsense)
