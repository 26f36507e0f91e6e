"""Triggers against a real S3 server, that counts what it is asked."""

import asyncio
import json
import logging
from bisect import bisect_right
from itertools import count

import pytest
from counted_s3 import CREDENTIALS, running_s3

from hetero_airflow.checkpoints.place import checkpoint_path, newest_key
from hetero_airflow.errors import CheckpointStoreUnavailable
from hetero_airflow.sensors.checkpoint_source import REOPEN_S, CheckpointSource, WatchedCheckpoint
from hetero_airflow.sensors.checkpoint_trigger import CheckpointPublished, CheckpointTrigger
from tests.sensors.conftest import first_event, still_waiting

BUCKETS = count()
INDEX = "index.json"


@pytest.fixture(scope="module")
def server():
    with running_s3() as server:
        yield server


@pytest.fixture
def s3(server, publish, monkeypatch):
    """The server with an empty bucket, configured as the store of checkpoints by an Airflow connection."""
    bucket = f"models-{next(BUCKETS)}"
    server.fail = None
    server.client().create_bucket(Bucket=bucket)
    extra = {"endpoint_url": server.url, "region_name": "us-east-1"}
    connection = {"conn_type": "aws", "login": "testing", "password": "hunter2", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_MODELS", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_CONN_ID", "models")
    monkeypatch.setenv("AIRFLOW__HETERO__CHECKPOINT_URL", f"s3://{bucket}/team-a")
    for name, value in {"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    server.requests.clear()
    return server


@pytest.fixture
def publish_s3(publish, monkeypatch):
    """Publishes as a task does, with its credentials in the environment."""

    def _publish(step, **given):
        with monkeypatch.context() as environment:
            for name, value in CREDENTIALS.items():
                environment.setenv(name, value)
            return publish(step, **given)

    return _publish


def trigger(run_id="r1", **condition):
    return CheckpointTrigger("train", "fit", run_id, condition=condition or {"step": 1})


def test_it_asks_for_one_object_with_the_connections_key_and_lists_nothing(run, s3, publish_s3):
    async def scene():
        waiting = asyncio.create_task(first_event(trigger(step=2)))
        publish_s3(1)
        await asyncio.sleep(100)
        s3.requests.clear()
        await asyncio.sleep(100)
        requests = list(s3.requests)
        publish_s3(2)
        return requests, (await waiting)["checkpoint"]

    requests, checkpoint = run(scene())
    assert checkpoint["step"] == 2
    assert {(request.method, request.path.partition("/team-a/")[2]) for request in requests} == {
        ("GET", f"{checkpoint_path('train', 'fit', 'r1', -1)}/{INDEX}".replace("%", "%25")),
    }
    assert all("Credential=testing/" in request.authorization for request in requests)


@pytest.mark.parametrize("status", [500, 503, 403])
def test_errors_of_a_store_end_no_waiter_and_cause_no_more_requests(run, s3, publish_s3, status, caplog):
    async def scene():
        s3.clock = asyncio.get_running_loop().time
        waiting = asyncio.create_task(first_event(trigger()))
        await asyncio.sleep(20)
        publish_s3(1)
        s3.requests.clear()
        s3.fail = status
        await asyncio.sleep(1000)
        assert not waiting.done()
        request_times = [request.at for request in s3.requests]
        s3.fail = None
        return request_times, (await waiting)["checkpoint"]["step"]

    request_times, step = run(scene())
    assert step == 1
    assert 1000 / 72 - 2 <= len(request_times) <= 1000 / 48 + 6, "one request for each look, at the same pace as ever"
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert str(status) in warning.getMessage()
    assert "hunter2" not in caplog.text


def test_a_server_that_is_too_slow_is_waited_for(run, s3, publish_s3, monkeypatch, caplog):
    async def scene():
        waiting = asyncio.create_task(first_event(trigger()))
        s3.delay_s = 0.3
        await asyncio.sleep(5)
        assert not waiting.done()
        s3.delay_s = 0.0
        publish_s3(1)
        return (await waiting)["checkpoint"]["step"]

    monkeypatch.setattr("hetero_airflow.checkpoints.object_client.READ_TIMEOUT_S", 0.1)
    assert run(scene()) == 1
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "ReadTimeoutError" in warning.getMessage()


def test_a_server_that_is_gone_is_waited_for(run, s3, publish_s3, monkeypatch):
    async def scene():
        waiting = await still_waiting(trigger(), for_s=5)
        return waiting.cancel()

    unreachable = {"conn_type": "aws", "login": "testing", "extra": {"endpoint_url": "http://127.0.0.1:9"}}
    monkeypatch.setenv("AIRFLOW_CONN_MODELS", json.dumps(unreachable))
    assert run(scene())


def test_an_endpoint_that_is_not_allowed_ends_it_with_the_error(run, s3, monkeypatch):
    elsewhere = {"conn_type": "aws", "login": "testing", "password": "hunter2"}
    monkeypatch.setenv("AIRFLOW_CONN_MODELS", json.dumps(elsewhere))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    error = run(first_event(trigger()))["error"]
    assert "neither the provider's own nor an allowed one" in error
    assert s3.requests == []


def test_a_watcher_looks_at_one_object_for_all_runs(run, s3, publish_s3):
    async def scene():
        steps = []

        async def listen():
            async for event in CheckpointPublished(of_dag="train", of_task="fit").run():
                steps.append(event.payload["step"])

        listening = asyncio.create_task(listen())
        for number in (1, 2):
            publish_s3(number, run_id=f"r{number}")
            s3.requests.clear()
            await asyncio.sleep(100)
        paths = {request.path for request in s3.requests}
        listening.cancel()
        return steps, paths

    steps, paths = run(scene())
    assert steps == [1, 2]
    assert [path.partition("/team-a/")[2] for path in paths] == [newest_key("train", "fit")]


def test_a_thousand_triggers_ask_at_most_ten_times_a_second(run, s3):
    async def scene():
        s3.clock = asyncio.get_running_loop().time
        runs = [f"r{number}" for number in range(1000)]
        waiting = [asyncio.create_task(first_event(trigger(run_id))) for run_id in (*runs, *runs)]
        await asyncio.sleep(30)
        for task in waiting:
            task.cancel()
        return list(s3.requests)

    requests = run(scene())
    times = [request.at for request in requests]
    assert max(bisect_right(times, at + 1) - number for number, at in enumerate(times)) <= 10
    assert len({request.path for request in requests}) == len(requests) > 230, (
        "each object in its turn, once for all who wait for it"
    )


def test_a_store_is_opened_once_for_all_and_again_after_a_long_failure(s3, publish_s3):
    publish_s3(1)
    source = CheckpointSource()
    watch = WatchedCheckpoint("train", "fit", "r1")
    assert source.read(watch).content.entries[0].step == 1
    (opened,) = source._buckets.values()
    s3.fail = 403
    for _ in range(2):
        with pytest.raises(CheckpointStoreUnavailable, match="403"):
            source.read(watch)
        assert source._buckets[None] is opened
    opened.opened_at -= REOPEN_S
    with pytest.raises(CheckpointStoreUnavailable, match="403"):
        source.read(watch)
    s3.fail = None
    assert source.read(watch).content.entries[0].step == 1
    assert source._buckets[None] is not opened


def test_it_requests_the_given_place_with_the_connections_key(run, s3, publish_s3):
    bucket = f"models-{next(BUCKETS)}"
    s3.client().create_bucket(Bucket=bucket)
    url = f"s3://{bucket}/team-b"

    async def scene():
        waiting = CheckpointTrigger("train", "fit", "r1", condition={"step": 1}, url=url)
        event = asyncio.create_task(first_event(waiting))
        publish_s3(1)
        s3.requests.clear()
        await asyncio.sleep(100)
        assert not event.done()
        requests = list(s3.requests)
        publish_s3(2, url=url)
        return requests, (await event)["checkpoint"]

    requests, checkpoint = run(scene())
    assert (checkpoint["step"], checkpoint["url"]) == (2, url)
    assert requests
    assert all(
        f"/{bucket}/team-b/" in request.path and "Credential=testing/" in request.authorization for request in requests
    )


def test_a_url_opens_no_endpoint_that_is_not_allowed(run, s3, monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_MODELS", json.dumps({"conn_type": "aws", "login": "testing", "password": "x"}))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    waiting = CheckpointTrigger("train", "fit", "r1", condition={"step": 1}, url="s3://elsewhere/team-b")
    assert "neither the provider's own nor an allowed one" in run(first_event(waiting))["error"]
    assert s3.requests == []


def test_many_urls_of_a_bucket_share_one_client_and_a_bad_bucket_costs_them_nothing(s3, publish_s3):
    bucket = f"models-{next(BUCKETS)}"
    s3.client().create_bucket(Bucket=bucket)
    source = CheckpointSource()
    for number in range(20):
        assert source.read(WatchedCheckpoint("train", "fit", "r1", url=f"s3://{bucket}/{number}")) is None
    publish_s3(7, url=f"s3://{bucket}/19")
    assert source.read(WatchedCheckpoint("train", "fit", "r1", url=f"s3://{bucket}/19")).content.entries[0].step == 7
    (opened,) = source._buckets.values()
    assert len({id(opened.store(f"s3://{bucket}/{number}")._client) for number in range(20)}) == 1
    missing = WatchedCheckpoint("train", "fit", "r1", url=f"s3://{bucket}-missing/a")
    for _ in range(2):
        with pytest.raises(CheckpointStoreUnavailable, match="NoSuchBucket"):
            source.read(missing)
        source._buckets.get(("s3", f"{bucket}-missing"), opened).opened_at -= REOPEN_S
    assert source._buckets["s3", bucket] is opened
