"""What a thousand waiting CheckpointSensors cost one triggerer, and how soon each wakes.

``make bench-sensors``. Airflow's own TriggerRunner runs them in a process of its own, as the scheduler would have
started them: from the trigger, with a copy of their DAG. The store is moto's S3 server, which counts what it is asked,
or a folder. Resident memory (RSS) is of that process, over the same one without a trigger. Waking is from the
publication of a checkpoint to the trigger's event, for runs that have waited for as long as the measurement goes.
"""

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
import uuid
from bisect import bisect_right
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import psutil
from counted_s3 import CREDENTIALS, running_s3

TASKS = 100
"""Arguments of the DAG with the sensors."""
PUBLISHED = 20
BUCKET = "models"


def waiting(channel, number):
    """The triggerer's process. It reports its memory without and with triggers, then the time of each event."""
    logging.disable(logging.CRITICAL)
    asyncio.run(_wait(channel, number))


async def _wait(channel, number):
    import structlog
    from airflow.jobs.triggerer_job_runner import TriggerRunner
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    from hetero_airflow.sensors import CheckpointSensor

    with DAG("train", schedule=None) as dag:
        CheckpointSensor(task_id="wait", of_task="fit", step=1)
        for index in range(TASKS - 1):
            EmptyOperator(task_id=f"other_{index}")
    data = DagSerialization.to_dict(dag)
    stored = DagSerialization.from_dict(data).get_task("wait")
    runner, process = TriggerRunner(), psutil.Process()
    channel.send(process.memory_info().rss)
    for index in range(number):
        runner.to_create.append(_workload(index, stored.start_trigger_args, data))
    begun = time.monotonic()
    await runner.create_triggers()
    channel.send(time.monotonic() - begun)
    lag_s = 0.0
    while not channel.poll():
        before = time.monotonic()
        await asyncio.sleep(0.1)
        lag_s = max(lag_s, time.monotonic() - before - 0.1)
    channel.recv()
    channel.send((process.memory_info().rss, sum(process.cpu_times()[:2]), lag_s))
    triggered = set()
    while len(triggered) < PUBLISHED:
        await asyncio.sleep(0.02)
        for entry in list(runner.events):
            if entry.trigger_id not in triggered:
                triggered.add(entry.trigger_id)
                channel.send((entry.trigger_id, time.time()))
    for details in runner.triggers.values():
        details["task"].cancel()


def _workload(index, start, data):
    from airflow.executors import workloads
    from airflow.executors.workloads.task import TaskInstanceDTO
    from airflow.models.trigger import Trigger

    run_id, now = f"run {index}", datetime.now(UTC)
    names = {"dag_id": "train", "run_id": run_id}
    numbers = {"try_number": 1, "map_index": -1, "pool_slots": 1, "priority_weight": 1}
    ti = TaskInstanceDTO(id=uuid.uuid4(), task_id="wait", dag_version_id=uuid.uuid4(), queue="q", **names, **numbers)
    absent = ("logical_date", "data_interval_start", "data_interval_end", "end_date", "partition_date", "partition_key")
    times = {"run_after": now, "start_date": now, **dict.fromkeys(absent)}
    fields = {"run_type": "manual", "state": "running", "consumed_asset_events": [], "clear_number": 0, "conf": {}}
    return workloads.RunTrigger(
        id=index,
        ti=ti,
        classpath=start.trigger_cls,
        encrypted_kwargs=Trigger.encrypt_kwargs(start.trigger_kwargs),
        dag_data=data,
        dag_run_data={**names, **times, **fields},
    )


def _publish(run_id, folder):
    """Publish a checkpoint as the task would. Returns when it was published."""
    from hetero_airflow.checkpoints.configured import checkpoint_options, checkpoint_place, store_credentials
    from hetero_airflow.checkpoints.opening import open_store
    from hetero_airflow.checkpoints.publishing import claim_place, publish

    options = checkpoint_options()
    credentials = store_credentials(options)
    place = checkpoint_place("train", "fit", run_id, -1, epoch=0, token=1, options=options, credentials=credentials)
    store = open_store(place)
    publish(store, claim_place(store, place), folder, step=1, metrics={}, now=datetime.now(UTC))
    return time.time()


def measure(kind, number, seconds):
    """Print one store's figures."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        saved = folder / "saved"
        saved.mkdir()
        (saved / "state.json").write_text("{}")
        os.environ["AIRFLOW_HOME"] = str(folder)
        os.environ["AIRFLOW__HETERO__CHECKPOINT_URL"] = (folder / "store").as_uri()
        server = None
        if kind == "s3":
            server = stack.enter_context(running_s3())
            server.client().create_bucket(Bucket=BUCKET)
            extra = {"endpoint_url": server.url, "region_name": "us-east-1"}
            login = {"login": CREDENTIALS["AWS_ACCESS_KEY_ID"], "password": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
            os.environ["AIRFLOW_CONN_MODELS"] = json.dumps({"conn_type": "aws", "extra": extra, **login})
            os.environ["AIRFLOW__HETERO__CHECKPOINT_CONN_ID"] = BUCKET
            os.environ["AIRFLOW__HETERO__CHECKPOINT_URL"] = f"s3://{BUCKET}/team"
            os.environ.update(CREDENTIALS)
        context = multiprocessing.get_context("spawn")
        ours, child_end = context.Pipe()
        child = context.Process(target=waiting, args=(child_end, number))
        child.start()
        idle, create_s = ours.recv(), ours.recv()
        if server:
            server.requests.clear()
        time.sleep(seconds)
        ours.send("enough")
        rss, cpu_s, lag_s = ours.recv()
        times = [request.at for request in server.requests] if server else []
        methods = {request.method for request in server.requests} if server else set()
        step = max(1, number // PUBLISHED)
        published = {index: _publish(f"run {index}", saved) for index in range(0, step * PUBLISHED, step)}
        woken = dict(ours.recv() for _ in range(PUBLISHED))
        child.join()
    waits = sorted(woken[index] - at for index, at in published.items())
    print(f"{kind}: {number} triggers of a DAG of {TASKS} tasks, created in {create_s:.1f} s, waiting for {seconds} s")
    print(f"  memory over idle      {(rss - idle) / 2**20:8.1f} MiB (idle {idle / 2**20:.1f} MiB)")
    print(f"  processor             {cpu_s:8.1f} s in all, imports and creation included")
    print(f"  longest block of the loop {1000 * lag_s:4.0f} ms")
    if server:
        most = max(bisect_right(times, at + 1) - index for index, at in enumerate(times))
        print(f"  requests at the server {len(times) / seconds:7.2f} /s, at most {most} in any second, {methods}")
    print(f"  from publication to event: median {statistics.median(waits):.1f} s, longest {waits[-1]:.1f} s")


def main():
    """Measure both stores, or the one named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", default=["s3", "file"])
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=180)
    given = parser.parse_args()
    logging.getLogger("botocore").setLevel(logging.WARNING)
    for kind in given.stores:
        measure(kind, given.number, given.seconds)


if __name__ == "__main__":
    main()
