"""A scheduler records its key in the configured store when it starts, in a process of its own."""

from hetero_airflow.checkpoints.fencing import KEY
from hetero_airflow.executor.store_key import main, start_recording


def test_a_scheduler_records_its_key_in_the_configured_store_and_leaves_that_of_another_one(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", tmp_path.as_uri())
    assert start_recording("key-a").wait(60) == 0
    assert (tmp_path / KEY).read_text() == "key-a"
    main("key-b")
    assert (tmp_path / KEY).read_text() == "key-a"
    assert "another key in the store, 'key-a'" in caplog.text


def test_without_a_configured_store_it_starts_nothing():
    assert start_recording("key-a") is None
