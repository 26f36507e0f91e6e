"""What the cache of objects saves: ``make bench-data``. Against a server of S3 with a delay before each answer.

1. Reading a folder of small objects with 16 connections: from the store (boto3, fsspec on obstore, this package with
   an empty cache; the same bytes as shards of 100 objects, also with an empty cache), and again: in a new process that
   asks the store (revalidated), in the same process, and with the kernel's pages of the files dropped. The ratio is to
   the cold reading of this package.
2. An emulated accelerator as in MLPerf Storage: a step takes 200 ms, and a batch 16 objects of 100 kB. Utilisation is
   the steps' own time, divided by the wall time. Plain: a DataLoader that reads with boto3, one object after another.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import fsspec
import obstore.fsspec
from torch.utils.data import DataLoader

from hetero_airflow.runtime import checkpoint, data
from hetero_airflow.settings import DATA_VARIABLE

KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}
SIZE_BYTES = 100_000
STEP_S = 0.2
BATCH = 16


@contextmanager
def server(delay_ms: int, count: int) -> Iterator[str]:
    """A store with this many objects; its address."""
    command = [sys.executable, str(Path(__file__).with_name("slow_s3.py")), *map(str, (delay_ms, count, SIZE_BYTES))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.communicate()


def use(url: str, folder: str) -> None:
    """Begin as a new process of a task does."""
    settings = {"folder": folder, "own_endpoints": {"s3": url}, "endpoints": [url]}
    os.environ.update(KEYS, **{DATA_VARIABLE: json.dumps(settings)})
    data._caches.clear()


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def client(url: str) -> Any:
    """A client of boto3 with as many connections as this package uses."""
    from botocore.config import Config

    return boto3.client("s3", endpoint_url=url, config=Config(max_pool_connections=16, s3={"addressing_style": "path"}))


def by_boto3(url: str, keys: list[str]) -> None:
    """Read all objects with 16 threads."""
    s3 = client(url)
    with ThreadPoolExecutor(16) as threads:
        for _ in threads.map(lambda key: s3.get_object(Bucket="lake", Key=key)["Body"].read(), keys):
            pass


def by_fsspec(url: str, keys: list[str]) -> None:
    """Read all objects with fsspec on obstore."""
    obstore.fsspec.register("s3")
    files = fsspec.filesystem(
        "s3", endpoint=url, client_options={"allow_http": True}, virtual_hosted_style_request=False
    )
    files.cat([f"lake/{key}" for key in keys], batch_size=16)


def by_cache(_: str, keys: list[str]) -> None:
    """Read all objects through the cache."""
    for path in data.cached_all([f"s3://lake/{key}" for key in keys]):
        path.read_bytes()


def by_shards(_: str, keys: list[str]) -> None:
    """Read the same bytes from shards."""
    assert sum(len(shard.tobytes()) > 0 for shard in data.shards("s3://lake/shards", ahead=2)) == len(keys) // 100


def drop_pages(folder: str) -> None:
    """Let the kernel forget the files' contents."""
    for path in Path(folder).glob("objects/*/*/*/data/*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def reading(count: int, repeat: int) -> None:
    """Print how long reading a folder takes, in each way."""
    keys = [f"data/{number:06}" for number in range(count)]
    taken: dict[str, list[float]] = {}

    def measure(name: str, work: Callable[[], object]) -> None:
        taken.setdefault(name, []).append(seconds(work))

    with server(20, count) as url:
        for _ in range(repeat):
            with tempfile.TemporaryDirectory() as folder:
                os.environ.update(KEYS)
                measure("store, boto3", lambda: by_boto3(url, keys))
                measure("store, fsspec", lambda: by_fsspec(url, keys))
                use(url, f"{folder}/shards")
                measure("cold, shards", lambda: by_shards(url, keys))
                use(url, folder)
                measure("cold", lambda folder=folder: by_cache(url, keys))
                use(url, folder)
                measure("revalidated", lambda folder=folder: by_cache(url, keys))
                measure("hot", lambda folder=folder: by_cache(url, keys))
                drop_pages(folder)
                measure("hot, pages dropped", lambda folder=folder: by_cache(url, keys))
                data._caches.clear()
    cold = statistics.median(taken["cold"])
    print(f"{count} objects of 100 kB, 20 ms to the first byte; median of {repeat}, and cold / each")
    for name, values in taken.items():
        print(f"  {name:20} {statistics.median(values):7.3f} s  {cold / statistics.median(values):6.1f} ×")


class Objects:
    """A data set of objects, read through the cache a batch at a time."""

    def __init__(self, count: int) -> None:
        self._urls = [f"s3://lake/data/{number:06}" for number in range(count)]

    def __len__(self) -> int:
        return len(self._urls)

    def __getitems__(self, indices: list[int]) -> list[bytes]:
        return [path.read_bytes() for path in data.cached_all([self._urls[index] for index in indices])]


class PlainObjects:
    """The same with boto3 alone."""

    def __init__(self, url: str, count: int) -> None:
        self._s3 = client(url)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._s3.get_object(Bucket="lake", Key=f"data/{index:06}")["Body"].read())


def utilisation(batches: Iterator[Any], steps: int) -> float:
    """The part of the time in which the accelerator computes."""
    next(batches)
    start = time.perf_counter()
    for _ in range(steps):
        time.sleep(STEP_S)
        next(batches, None)
    return steps * STEP_S / (time.perf_counter() - start)


def accelerator(steps: int) -> None:
    """Print the utilisation of an emulated accelerator."""
    count = (steps + 3) * BATCH
    print(f"Emulated accelerator: {steps} steps of 200 ms, batches of 16 × 100 kB; utilisation")
    for delay_ms in (0, 20, 100):
        with server(delay_ms, count) as url, tempfile.TemporaryDirectory() as folder:
            results = {}
            use(url, folder)
            for name in ("cold", "warm"):
                loader = checkpoint.loader(DataLoader(Objects(count), BATCH, collate_fn=list))
                results[name] = utilisation(loader, steps)
                use(url, folder)
            plain = DataLoader(PlainObjects(url, count), BATCH, collate_fn=list)
            results["plain"] = utilisation(iter(plain), min(steps, 50))
            print(f"  {delay_ms:3} ms  " + "  ".join(f"{name} {100 * value:5.1f} %" for name, value in results.items()))
            data._caches.clear()
            shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    reading(arguments.objects, arguments.repeat)
    accelerator(arguments.steps)


if __name__ == "__main__":
    main()
