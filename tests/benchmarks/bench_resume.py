"""What a task reads, and how long it takes, until it can go on from its checkpoint: ``make bench-resume``.

The state is one of tensors in parts, saved by two ranks into a server of S3 behind a link of 1 Gbit/s. Cold: the data
cache of the host is empty. Warm: the task ran on this host before. The time is from the first look for a checkpoint
until the state is restored; the seconds in which torch is imported do not count.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import boto3

from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.settings import CHECKPOINT_VARIABLE, DATA_VARIABLE

BYTES_PER_S = 125_000_000
CHUNK = 1 << 18
KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}

SERVER = """
import signal
from moto.s3.models import FakeKey
from moto.server import ThreadedMotoServer

written = FakeKey.value

def hold(key, content):
    written.fset(key, content)
    key.held = content

FakeKey.value = property(lambda key: key.held, hold)  # moto reads the whole object from the disk for each range
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
signal.pause()
"""

RANK = """
import json, sys, time
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from hetero_airflow.runtime import checkpoint

torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
rows, is_save = int(sys.argv[1]), sys.argv[2] == "save"
state = {
    f"layer{number}": distribute_tensor(torch.full((rows, 1000), float(number) * is_save), mesh, [Shard(0)])
    for number in range(10)
}
dist.barrier()
start = time.perf_counter()
if is_save:
    checkpoint.save_distributed(0, state)
    checkpoint.wait()
else:
    assert checkpoint.load_distributed(state) == 0
    assert all((state[f"layer{number}"].to_local() == number).all() for number in range(10))
dist.barrier()
if dist.get_rank() == 0:
    print(json.dumps(time.perf_counter() - start))
dist.destroy_process_group()
"""


class SlowLink:
    """A proxy that passes on as many bytes a second, of all connections and directions together."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._free_at = 0.0
        self.received_bytes = 0
        """What came from the server."""
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        threading.Thread(target=self._run, args=(ready,), daemon=True).start()
        ready.wait()

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._pass(reader, forth, is_answer=False), self._pass(back, writer, is_answer=True))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        try:
            while chunk := await reader.read(CHUNK):
                if is_answer:
                    self.received_bytes += len(chunk)
                self._free_at = max(self._free_at, time.monotonic()) + len(chunk) / BYTES_PER_S
                await asyncio.sleep(self._free_at - time.monotonic())
                writer.write(chunk)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@contextmanager
def store() -> Iterator[SlowLink]:
    """A server of S3 with a bucket, behind the link."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout
        port = int(process.stdout.readline())
        with closing(boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")) as client:
            client.create_bucket(Bucket="lake")
        yield SlowLink(port)
    finally:
        process.kill()
        process.communicate()


def run(link: SlowLink, cache: str, token: int, ranks: int, rows: int, what: str) -> tuple[float, int]:
    """Save or load with this many ranks; seconds, and bytes from the store."""
    place = CheckpointPlace(url="s3://lake/c", path="d/t/r/-1", token=token, endpoint=link.url, endpoints=(link.url,))
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        CHECKPOINT_VARIABLE: place.model_dump_json(),
        DATA_VARIABLE: json.dumps({"folder": cache}),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
    }
    before = link.received_bytes
    command = [sys.executable, "-c", RANK, str(rows), what]
    processes = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=1800)[0] for process in processes]
    assert not any(process.returncode for process in processes), "a rank failed"
    return json.loads(said[0]), link.received_bytes - before


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    arguments = parser.parse_args()
    os.environ.update(KEYS)
    rows = arguments.megabytes * 10**6 // 4 // 1000 // 10
    with store() as link, tempfile.TemporaryDirectory() as folder:
        warm, token = f"{folder}/warm", 1
        seconds, _ = run(link, warm, token, 2, rows, "save")
        print(f"{arguments.megabytes} MB, two ranks, a link of 1 Gbit/s: saved and published in {seconds:.1f} s")
        for ranks in (2, 1):
            found = {}
            for name, cache in (("cold", f"{folder}/cold{ranks}"), ("warm", warm)):
                token += 1
                seconds, received = run(link, cache, token, ranks, rows, "load")
                found[name] = seconds
                print(f"  {ranks} ranks, {name}: {seconds:5.2f} s, {received / 1e6:7.1f} MB from the store")
            print(f"  {ranks} ranks, warm / cold: {found['warm'] / found['cold']:.2f} (limit 0.30)")


if __name__ == "__main__":
    main()
