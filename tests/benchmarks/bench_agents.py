"""What many agents cost one API server; run ``python tests/benchmarks/bench_agents.py [agents] [seconds]``.

A real Airflow API server (one process, its own middleware and access log), once on SQLite and once on PostgreSQL;
by default 1,000 agents, each with a key, a connection and a token for each request of its own, send an
inventory of 8 GPUs and then a heartbeat with 9 readings every 5 s for 60 s. Prints the server's CPU time as a share of
one core, and how long a heartbeat takes until it is answered, which is when it is in the database.
"""

import asyncio
import gc
import random
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from time import monotonic, perf_counter

import psutil
from local_airflow import LocalAirflow
from sqlalchemy import create_engine, insert

from hetero_airflow.agent.protocol import (
    HEARTBEAT_PATH,
    HEARTBEAT_S,
    INVENTORY_PATH,
    PREFIX,
    Heartbeat,
    InventoryReport,
)
from hetero_airflow.agent.tokens import public_key_hex
from hetero_airflow.model.device import Telemetry
from hetero_airflow.store import tables
from hetero_airflow.testing import a_cpu, a_device
from tests.api_server import Speaker
from tests.postgres_server import running_postgres

READINGS = ("cpu", *(f"GPU-{n}" for n in range(8)))


class Connection:
    """One agent's HTTP/1.1 connection, without a library: the client must cost less than the measured server."""

    def __init__(self, speaker: Speaker, port: int) -> None:
        self.speaker, self._port = speaker, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, body: bytes) -> tuple[int, bytes, float]:
        """Send a request. Returns status, body, and the seconds from the first byte sent to the last one read."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        token = self.speaker.token(method, path, body)
        head = f"{method} {PREFIX}{path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
        begin = perf_counter()
        writer.write(f"{head}Authorization: Bearer {token}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in answer.split(b"\r\n")[1:-2])
        reply_body = await reader.readexactly(int(fields[b"content-length"]))
        return int(answer[9:12]), reply_body, perf_counter() - begin


def heartbeat(worker_id: str, digest: str) -> bytes:
    """One with the readings of a CPU and 8 GPUs."""
    readings = tuple(
        Telemetry(device_id=id_, memory_free_bytes=42949672960, utilization=0.5, temperature_c=63, power_w=412.5)
        for id_ in READINGS
    )
    beat = Heartbeat(worker=worker_id, inventory=digest, telemetry=readings)
    return beat.model_dump_json(exclude_defaults=True).encode()


async def one_agent(connection: Connection, body: bytes, until: float, took: list[float], failed: list[int]) -> None:
    """Send heartbeats until then. Each agent starts at another moment of the period."""
    at = monotonic() + random.uniform(0, HEARTBEAT_S)
    while at < until:
        await asyncio.sleep(at - monotonic())
        status, _, seconds = await connection.send("POST", HEARTBEAT_PATH, body)
        took.append(seconds)
        failed += [status] if status != 200 else []
        at += HEARTBEAT_S


async def register(connection: Connection) -> str:
    """Send the inventory. Returns its digest."""
    worker = connection.speaker.worker_id
    devices = (a_cpu(64), *(a_device(f"GPU-{worker}-{n}", index=n) for n in range(8)))
    report = InventoryReport(worker=connection.speaker.worker(devices=devices))
    status, body, _ = await connection.send(
        "PUT", INVENTORY_PATH, report.model_dump_json(exclude_defaults=True).encode()
    )
    assert status == 200, body
    return body.decode().split('"')[3]


def cpu_seconds(process: psutil.Process) -> float:
    """CPU seconds of the server's process and its children."""
    times = [times_of_process.cpu_times() for times_of_process in (process, *process.children(recursive=True))]
    return sum(cpu_time.user + cpu_time.system for cpu_time in times)


async def measure(connections: list[Connection], process: psutil.Process, seconds: float) -> None:
    """Measure one server and print its figures."""
    begin, cpu = perf_counter(), cpu_seconds(process)
    digests = await asyncio.gather(*map(register, connections))
    spent = perf_counter() - begin
    print(f"  {len(connections)} inventories at once: {spent:.1f} s, {cpu_seconds(process) - cpu:.1f} s of CPU")
    agents = [
        (connection, heartbeat(connection.speaker.worker_id, digest))
        for connection, digest in zip(connections, digests, strict=True)
    ]
    gc.collect()
    gc.freeze()  # the agents' own pauses are not what is measured
    took: list[float] = []
    failed: list[int] = []
    begin, cpu, own_cpu_s = perf_counter(), cpu_seconds(process), sum(psutil.Process().cpu_times()[:2])
    until = monotonic() + seconds
    await asyncio.gather(*(one_agent(connection, body, until, took, failed) for connection, body in agents))
    spent = perf_counter() - begin
    share = (cpu_seconds(process) - cpu) / spent
    hundredths = [1e3 * quantile for quantile in quantiles(took, n=1000)]
    print(f"  {len(took)} heartbeats in {spent:.0f} s, {len(failed)} failed; server: {100 * share:.0f} % of a core")
    middle, p95, p99 = 1e3 * median(took), hundredths[949], hundredths[989]
    print(f"  answered after: median {middle:.0f} ms, p95 {p95:.0f}, p99 {p99:.0f}, longest {1e3 * max(took):.0f}")
    client = (sum(psutil.Process().cpu_times()[:2]) - own_cpu_s) / spent
    print(f"  beside it: the agents took {100 * client:.0f} % of a core, load {psutil.getloadavg()[0]:.1f}")


def key_row(speaker: Speaker) -> dict[str, object]:
    """The row of an enrolled agent's key, without a thousand enrolments."""
    digits = public_key_hex(speaker.key)
    return {"worker_id": speaker.worker_id, "public_key": digits, "nonce": 0, "instance": "", "changed": 1}


def main() -> None:
    """Both databases, one after the other."""
    agents = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60
    with running_postgres() as postgres:
        for name, url in {"sqlite": None, "postgresql": postgres.url}.items():
            with tempfile.TemporaryDirectory() as folder:
                dags = Path(folder, "dags")
                dags.mkdir()
                with LocalAirflow(Path(folder, "home"), dags, components=["api-server"], database=url) as airflow:
                    print(name)
                    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
                    connections = [Connection(Speaker(airflow.url, f"w{n:05}"), airflow.port) for n in range(agents)]
                    with engine.begin() as database:
                        database.execute(
                            insert(tables.worker_key), [key_row(connection.speaker) for connection in connections]
                        )
                    engine.dispose()
                    asyncio.run(measure(connections, psutil.Process(airflow.pid("api-server")), seconds))


if __name__ == "__main__":
    main()
