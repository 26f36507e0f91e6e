from __future__ import annotations

import importlib
import importlib.util
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetero_airflow.discovery.health.xid_watch import COMMAND, XidEvent, XidWatch, report_xids
from hetero_airflow.testing import EPOCH, FakeClock

FAKE = Path(__file__).parents[1] / "fake_pynvml.py"
XID = 8


@pytest.fixture
def pynvml():
    """A stand-in for the module, new for each test."""
    spec = importlib.util.spec_from_file_location("fake_pynvml", FAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def heard(pynvml, *script, seconds_apart=2.0, waits=20) -> list[tuple[str, int]]:
    """(uuid, XID) of what is told until the script is over."""
    pynvml.SCRIPT[:] = script
    told, clock, left = [], FakeClock(), iter(range(waits))

    def now():
        return clock.advance(seconds_apart)

    report_xids(pynvml, told.append, lambda: bool(pynvml.SCRIPT) and next(left, None) is not None, now)
    assert all(seen.at > EPOCH for seen in told)
    return [(seen.uuid, seen.xid) for seen in told]


def test_the_fake_has_only_names_of_the_real_module(pynvml):
    real = importlib.import_module("pynvml")
    names = [name for name in vars(pynvml) if name.startswith(("nvml", "NVML", "c_nvml"))]
    assert [name for name in names if not hasattr(real, name)] == []
    assert pynvml.nvmlEventTypeXidCriticalError == real.nvmlEventTypeXidCriticalError
    fields = [name for name, _ in real.c_nvmlEventData_t._fields_]
    assert fields[:3] == [name for name, _ in pynvml.c_nvmlEventData_t._fields_]


def test_xids_are_reported_with_their_gpu_in_order(pynvml):
    assert heard(pynvml, (1, XID, 79), "timeout", (0, XID, 45), (1, XID, 48)) == [
        ("GPU-1", 79),
        ("GPU-0", 45),
        ("GPU-1", 48),
    ]
    assert pynvml.REGISTERED == [[(0, XID), (1, XID)]]


def test_other_events_are_ignored(pynvml):
    assert heard(pynvml, (0, 1, 12), (0, XID, 31)) == [("GPU-0", 31)]


def test_many_equal_xids_are_reported_once_a_second(pynvml):
    storm = [(0, XID, 45)] * 15 + [(1, XID, 45)]
    assert heard(pynvml, *storm, seconds_apart=0.1) == [("GPU-0", 45), ("GPU-0", 45), ("GPU-1", 45)]


def test_a_lost_gpu_is_reported_and_the_others_stay_watched(pynvml):
    assert heard(pynvml, ("lost", 0), (1, XID, 48)) == [("GPU-0", 79), ("GPU-1", 48)]
    assert pynvml.REGISTERED == [[(0, XID), (1, XID)], [(1, XID)]]


def test_a_gpu_that_has_no_such_events_is_left_out(pynvml):
    pynvml.SUPPORTED |= {0: None, 1: 0x10}
    assert heard(pynvml, (0, XID, 79)) == []
    pynvml.SUPPORTED[1] = 0x1F
    assert heard(pynvml, (1, XID, 79)) == [("GPU-1", 79)]


def test_an_unexpected_error_ends_the_watch(pynvml):
    pynvml.nvmlDeviceGetMemoryInfo = lambda handle: None
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        heard(pynvml, ("lost", 0), (1, XID, 48))


# -- the process -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_library(tmp_path, monkeypatch):
    """The stand-in, where processes look for pynvml first."""
    (tmp_path / "pynvml.py").symlink_to(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return monkeypatch


@pytest.fixture
def watch():
    opened = []

    def _watch(*command):
        opened.append(XidWatch(*command))
        return opened[-1]

    yield _watch
    for one in opened:
        one.close()


def poll(watch, count, seconds=20) -> list[XidEvent]:
    end, seen = time.monotonic() + seconds, []
    while len(seen) < count and time.monotonic() < end:
        seen += watch.poll()
        time.sleep(0.01)
    return seen


def test_the_process_reports_the_drivers_xids(watch, fake_library):
    fake_library.setenv("FAKE_XIDS", "[[0, 8, 79], [1, 8, 45]]")
    assert [(seen.uuid, seen.xid) for seen in poll(watch(), 2)] == [("GPU-0", 79), ("GPU-1", 45)]


def test_without_nvidias_library_it_ends_and_is_not_started_again(watch, fake_library):
    fake_library.setenv("FAKE_NVML", "missing")
    one = watch()
    one.poll()
    first = one._process
    first.wait(20)
    assert one.poll() == []
    assert one.poll() == []
    assert (first.returncode, one._process) == (0, None)


def test_foreign_lines_are_ignored(watch):
    line = XidEvent(uuid="GPU-0", xid=79, at=EPOCH).model_dump_json()
    one = watch((sys.executable, "-c", f"print('NVRM: hello'); print('''{line}'''); print('half a li', end='')"))
    assert poll(one, 1) == [XidEvent(uuid="GPU-0", xid=79, at=EPOCH)]


def test_poll_never_blocks_and_a_broken_process_is_not_restarted_at_once(watch, tmp_path):
    log = tmp_path / "starts"
    one = watch((sys.executable, "-c", f"open({str(log)!r}, 'a').write('x'); raise SystemExit(3)"))
    one.poll()
    one._process.wait(20)
    took = []
    for _ in range(100):
        begin = time.monotonic()
        assert one.poll() == []
        took.append(time.monotonic() - begin)
    assert statistics.median(took) < 0.003  # a busy host may take the processor away now and then
    assert log.read_text() == "x"


def test_the_process_ends_with_its_parent(fake_library):
    parent = (
        "import os, subprocess, sys;"
        f"child = subprocess.Popen({list(COMMAND)!r} + [str(os.getpid())], stdout=sys.stdout);"
        "print(child.pid, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        pid = int(process.stdout.readline())
        rest, _ = process.communicate(timeout=30)  # its end comes when the child has closed the pipe too
    assert (pid != process.pid, rest, process.returncode) == (True, b"", 0)
