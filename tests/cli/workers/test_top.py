import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from datetime import timedelta

import pytest

from hetero_airflow.cli.workers.top import TopFacts, top_report
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.snapshot import DeviceUsage, Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.store.sql.queue import WaitingRequest
from hetero_airflow.testing import EPOCH, a_device, a_lease, a_pending, a_worker

NOW = EPOCH + timedelta(minutes=2)


def facts(workers: int = 1, waiting: int = 1) -> TopFacts:
    ids = [f"01a1fa1b-42d5-78df-9288-{n:012d}" for n in range(waiting)]
    reading = Telemetry(device_id="GPU-0", utilization=0.62, memory_free_bytes=30 << 30, temperature_c=41, power_w=250)
    hosts = tuple(a_worker(f"worker-{n}") for n in range(workers))
    lost = a_worker("gone", devices=(a_device("GPU-9", simulated=True),), state=WorkerState.LOST)
    snapshot = Snapshot(
        1,
        (*hosts, lost),
        usage={("worker-0", "GPU-0"): DeviceUsage(1000)},
        pending=tuple(a_pending(id_, task_id=f"waits{n}") for n, id_ in enumerate(ids)),
        leases=(a_lease("holder", "worker-0", **{"GPU-0": 1000}),),
        holders={"holder": a_pending("holder", task_id="fit", map_index=2)},
    )
    queue = [
        WaitingRequest(id_, "dag", "run", f"waits{n}", -1, 1, EPOCH, n + 1, f"busy: found {ids[0]} ahead")
        for n, id_ in enumerate(ids)
    ]
    return TopFacts(snapshot, {("worker-0", "GPU-0"): reading}, queue, NOW)


def test_the_picture_has_devices_with_their_use_and_the_queue_with_names(render):
    text = render(top_report(facts()), width=160)
    assert "00:02:00 UTC   2 workers, 1 lost   4 devices: 2 free, 1 leased, 1 faulty" in text
    (device,) = [line for line in text.splitlines() if "fit" in line]
    for part in (
        "worker-0",
        "nvidia/a100-sxm4-40gb",
        "leased",
        "100%",
        "██████░░░░ 62%",
        "10GiB of 40GiB",
        "41 °C",
        "250 W",
    ):
        assert part in device
    assert "dag.fit[2]" in device
    assert "(simulated)" in text
    (row,) = [line for line in text.splitlines() if "dag.waits0 " in line]
    assert row.split() == ["1", "dag.waits0", "2", "min", "busy:", "found", "dag.waits0", "(run)", "ahead"]


def test_a_small_terminal_says_how_many_rows_are_left_out(render):
    text = render(top_report(facts(workers=40, waiting=9), height=24), width=160)
    assert len(text.splitlines()) <= 24
    assert "devices more; `airflow hetero workers` lists all" in text
    assert "and 1 more; `airflow hetero queue` lists all" in text


def test_nothing_at_all_is_a_picture_too(render):
    assert "0 workers   0 devices: none" in render(top_report(TopFacts(Snapshot(0), {}, [], NOW)))


def test_a_pipe_gets_one_picture(installation):
    for arguments in ((), ("--once",)):
        done = installation.run("hetero", "top", *arguments)
        assert (done.returncode, "Waiting: 2" in done.stdout, "\x1b" in done.stdout) == (0, True, False), done.stderr


def test_what_is_given_with_watch_must_make_sense(installation):
    text = installation.complaint("explain", "dag", "run", "placed", "--watch", "--json")
    assert "--json beside it" in text


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(("top",), b"Waiting: 2"), (("explain", "dag", "run", "placed", "--watch"), b"dag.placed")],
)
def test_a_terminal_gets_the_picture_until_q_and_is_restored(installation, arguments, shown):
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    before = termios.tcgetattr(terminal)
    command = [sys.executable, "-m", "airflow", "hetero", *arguments]
    environment = installation._environment() | {"TERM": "xterm"}
    with subprocess.Popen(command, env=environment, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        assert shown in read_until(controller, shown)
        os.write(controller, b"q")
        assert b"\x1b[?1049l" in read_until(controller, b"\x1b[?1049l"), "the screen from before comes back"
        assert process.wait(600) == 0
    assert termios.tcgetattr(terminal) == before
    for end in (controller, terminal):
        os.close(end)


def read_until(controller: int, wanted: bytes, timeout_s: float = 60) -> bytes:
    """What the terminal shows until then."""
    text, end = b"", time.monotonic() + timeout_s
    while wanted not in text and time.monotonic() < end:
        if select.select([controller], [], [], 0.2)[0]:
            text += os.read(controller, 65536)
    return text
