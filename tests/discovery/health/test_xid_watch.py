import importlib
import importlib.util
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
    """A fake of the module, new for each test."""
    spec = importlib.util.spec_from_file_location("fake_pynvml", FAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reported_xids(pynvml, *script, seconds_apart=2.0, waits=20) -> list[tuple[str, int]]:
    """(uuid, XID) of each report until the script ends."""
    pynvml.SCRIPT[:] = script
    reported, clock, remaining_waits = [], FakeClock(), iter(range(waits))

    def now():
        return clock.advance(seconds_apart)

    report_xids(pynvml, reported.append, lambda: bool(pynvml.SCRIPT) and next(remaining_waits, None) is not None, now)
    assert all(event.at > EPOCH for event in reported)
    return [(event.uuid, event.xid) for event in reported]


def test_the_fake_has_only_names_of_the_real_module(pynvml):
    real = importlib.import_module("pynvml")
    names = [name for name in vars(pynvml) if name.startswith(("nvml", "NVML", "c_nvml"))]
    assert [name for name in names if not hasattr(real, name)] == []
    assert pynvml.nvmlEventTypeXidCriticalError == real.nvmlEventTypeXidCriticalError
    fields = [name for name, _ in real.c_nvmlEventData_t._fields_]
    assert fields[:3] == [name for name, _ in pynvml.c_nvmlEventData_t._fields_]


def test_xids_are_reported_with_their_gpu_in_order(pynvml):
    assert reported_xids(pynvml, (1, XID, 79), "timeout", (0, XID, 45), (1, XID, 48)) == [
        ("GPU-1", 79),
        ("GPU-0", 45),
        ("GPU-1", 48),
    ]
    assert pynvml.REGISTERED == [[(0, XID), (1, XID)]]


def test_other_events_are_ignored(pynvml):
    assert reported_xids(pynvml, (0, 1, 12), (0, XID, 31)) == [("GPU-0", 31)]


def test_many_equal_xids_are_reported_once_a_second(pynvml):
    storm = [(0, XID, 45)] * 15 + [(1, XID, 45)]
    assert reported_xids(pynvml, *storm, seconds_apart=0.1) == [("GPU-0", 45), ("GPU-0", 45), ("GPU-1", 45)]


def test_a_lost_gpu_is_reported_and_the_others_stay_watched(pynvml):
    assert reported_xids(pynvml, ("lost", 0), (1, XID, 48)) == [("GPU-0", 79), ("GPU-1", 48)]
    assert pynvml.REGISTERED == [[(0, XID), (1, XID)], [(1, XID)]]


def test_a_gpu_that_has_no_such_events_is_left_out(pynvml):
    pynvml.SUPPORTED |= {0: None, 1: 0x10}
    assert reported_xids(pynvml, (0, XID, 79)) == []
    pynvml.SUPPORTED[1] = 0x1F
    assert reported_xids(pynvml, (1, XID, 79)) == [("GPU-1", 79)]


def test_an_unexpected_error_ends_the_watch(pynvml):
    pynvml.nvmlDeviceGetMemoryInfo = lambda handle: None
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        reported_xids(pynvml, ("lost", 0), (1, XID, 48))


# -- the process -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_library(tmp_path, monkeypatch):
    """The fake, in the first folder where processes look for pynvml."""
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
    for xid_watch in opened:
        xid_watch.close()


def poll(watch, count, seconds=20) -> list[XidEvent]:
    end, events = time.monotonic() + seconds, []
    while len(events) < count and time.monotonic() < end:
        events += watch.poll()
        time.sleep(0.01)
    return events


def test_the_process_reports_the_drivers_xids(watch, fake_library):
    fake_library.setenv("FAKE_XIDS", "[[0, 8, 79], [1, 8, 45]]")
    assert [(event.uuid, event.xid) for event in poll(watch(), 2)] == [("GPU-0", 79), ("GPU-1", 45)]


def test_without_nvidias_library_it_ends_and_is_not_started_again(watch, fake_library):
    fake_library.setenv("FAKE_NVML", "missing")
    xid_watch = watch()
    xid_watch.poll()
    first = xid_watch._process
    first.wait(600)
    assert xid_watch.poll() == []
    assert xid_watch.poll() == []
    assert (first.returncode, xid_watch._process) == (0, None)


def test_foreign_lines_are_ignored(watch):
    line = XidEvent(uuid="GPU-0", xid=79, at=EPOCH).model_dump_json()
    xid_watch = watch((sys.executable, "-c", f"print('NVRM: hello'); print('''{line}'''); print('half a li', end='')"))
    assert poll(xid_watch, 1) == [XidEvent(uuid="GPU-0", xid=79, at=EPOCH)]


def test_poll_does_not_wait_for_a_silent_process(watch, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits"))
    xid_watch = watch((sys.executable, "-c", "import time; time.sleep(3600)"))
    assert [xid_watch.poll() for _ in range(100)] == [[]] * 100
    assert xid_watch._process.poll() is None


def test_a_broken_process_is_not_restarted_at_once(watch, tmp_path):
    log = tmp_path / "starts"
    xid_watch = watch((sys.executable, "-c", f"open({str(log)!r}, 'a').write('x'); raise SystemExit(3)"))
    xid_watch.poll()
    xid_watch._process.wait(600)
    assert [xid_watch.poll() for _ in range(100)] == [[]] * 100
    assert (xid_watch._process, log.read_text()) == (None, "x")


def test_the_process_ends_with_its_parent(fake_library):
    parent = (
        "import os, subprocess, sys;"
        f"child = subprocess.Popen({list(COMMAND)!r} + [str(os.getpid())], stdout=sys.stdout);"
        "print(child.pid, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        pid = int(process.stdout.readline())
        remaining_output, _ = process.communicate(timeout=30)  # the pipe ends when the child has closed it, too
    assert (pid != process.pid, remaining_output, process.returncode) == (True, b"", 0)
