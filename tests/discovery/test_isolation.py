import os
import time
from pathlib import Path

import psutil
import pytest

from hetero_airflow.discovery import isolation
from hetero_airflow.discovery.isolation import run_probes
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.model.device import Device, Telemetry

ODD_PROBES = """
import ctypes, os, subprocess, sys, time
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.errors import ProbeError
from hetero_airflow.model.device import Device, Telemetry

def fine():
    gpu = Device(id="acme-0", vendor="acme", kind="gpu", model="x1", index=0, memory_bytes=1)
    return ProbeResult((gpu,), (Telemetry(device_id="acme-0", utilization=0.5),), {"acme": "1.0"}, ("one is warm",))

def chatty():
    print("library of acme, version 1")
    os.system("echo from a child")
    ctypes.CDLL(None).puts(b"from C")
    return fine()

def hangs():
    time.sleep(3600)

def hangs_with_a_child():
    child = subprocess.Popen(["sleep", "600"])
    with open(os.environ["PID_FILE"], "w") as file:
        file.write(str(child.pid))
    time.sleep(3600)

def stays_after_its_answer():
    import threading
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return fine()

def crashes():
    ctypes.string_at(0)

def garbage():
    for fd in range(3, 20):
        try:
            os.write(fd, b"{]rubbish")
        except OSError:
            pass
    os._exit(0)

def floods():
    for fd in range(3, 20):
        try:
            while True:
                os.write(fd, b"x" * 65536)
        except OSError:
            pass

def exits():
    sys.stderr.write("license expired\\n")
    os._exit(3)

def raises():
    raise RuntimeError("two\\nlines " + "x" * 5000)

def raises_a_probe_error():
    raise ProbeError("acme-smi", found="nonsense", remedy="Update it")

def wrong_type():
    return {"devices": []}
"""
NAMES = [line[4:].split("(")[0] for line in ODD_PROBES.splitlines() if line.startswith("def ")]


@pytest.fixture(autouse=True)
def plugin(tmp_path, monkeypatch):
    """Another package with probes, installed as pip would: a module and a dist-info with entry points."""
    (tmp_path / "odd_probes.py").write_text(ODD_PROBES)
    info = tmp_path / "odd_probes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-probes\nVersion: 1.0\n")
    lines = [f"{name} = odd_probes:{name}" for name in [*NAMES, "missing"]]
    (info / "entry_points.txt").write_text("\n".join(["[hetero_airflow.probes]", *lines]))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


ACME = Device(id="acme-0", vendor="acme", kind="gpu", model="x1", index=0, memory_bytes=1)
FINE = ProbeResult(
    (ACME,), (Telemetry(device_id="acme-0", utilization=0.5),), {"acme": "1.0"}, ("one is warm",)
)  # fmt: skip


def test_each_failure_is_one_line_and_leaves_the_other_results():
    names = [
        "crashes", "garbage", "exits", "raises", "raises_a_probe_error", "wrong_type", "missing", "no_such", "fine",
    ]  # fmt: skip
    results = run_probes(names, timeout_s=60)
    assert list(results) == names
    assert results.pop("fine") == FINE
    assert (
        results.pop("raises_a_probe_error")
        == "raises_a_probe_error: acme-smi can't be used; found nonsense. Update it."
    )
    expected = {
        "crashes": "crashes: its process was ended by SIGSEGV. Run",
        "garbage": "garbage: its process answered 9 bytes that are no result, ending in '{]rubbish'. Run",
        "exits": "exits: its process ended with code 3 and no answer, its last output 'license expired'. Run",
        "raises": "raises: raised RuntimeError: two lines xxx",
        "wrong_type": "wrong_type: returned a dict, not a ProbeResult",
        "missing": "missing: hetero_airflow.probes 'missing' can't be used; found that odd_probes:missing can't be",
        "no_such": "no_such: hetero_airflow.probes 'no_such' can't be used; found no such name. Use",
    }
    for name, beginning in expected.items():
        assert str(results[name]).startswith(beginning)
        assert len(str(results[name])) <= isolation.MAX_LINE
        assert "\n" not in str(results[name])


def test_output_of_a_library_does_not_damage_the_answer():
    assert run_probes(["chatty"], timeout_s=60) == {"chatty": FINE}


def test_a_hung_probe_is_killed_with_all_its_children(tmp_path, monkeypatch):
    pid_file = tmp_path / "pid"
    monkeypatch.setenv("PID_FILE", str(pid_file))
    started = time.monotonic()
    assert run_probes(["fine"], timeout_s=60) == {"fine": FINE}
    limit = max(3, round(10 * (time.monotonic() - started)))  # on a busy host, three at once take their time
    results = run_probes(["hangs_with_a_child", "hangs", "fine"], timeout_s=limit)
    assert results["fine"] == FINE
    by_hand = 'Run "python -m hetero_airflow.discovery.probe_process hangs" by hand.'
    assert results["hangs"] == (f"hangs: no answer within {limit} s. {by_hand} Or raise [hetero] probe_timeout_s.")
    grandchild = int(pid_file.read_text())
    psutil.wait_procs([p for p in psutil.process_iter() if p.pid == grandchild], timeout=5)
    assert not is_running(grandchild)


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_process_that_stays_after_its_answer_delays_nothing():
    assert run_probes(["stays_after_its_answer"], timeout_s=3600) == {"stays_after_its_answer": FINE}


def test_an_endless_answer_is_cut_off():
    line = run_probes(["floods"], timeout_s=60)["floods"]
    assert line == (
        'floods: an answer of more than 4 MiB. Run "python -m hetero_airflow.discovery.probe_process floods" by hand.'
    )


def test_no_python_to_start_is_one_line(monkeypatch):
    monkeypatch.setattr(isolation.sys, "executable", "/nowhere/python")
    line = run_probes(["fine"], timeout_s=1)["fine"]
    assert str(line).startswith("fine: /nowhere/python can't be started: ")


def test_no_process_is_left(monkeypatch):
    before = {child.pid for child in psutil.Process().children()}
    run_probes(["fine", "crashes"], timeout_s=60)
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_file_in_the_working_directory_does_not_replace_a_library(tmp_path, monkeypatch):
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "psutil.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(folder)
    result = run_probes(["cpu"], timeout_s=60)["cpu"]
    assert isinstance(result, ProbeResult)
    assert Path.cwd() == folder
    assert result.devices[0].id == "cpu"
    assert set(result.devices[0].cores) <= os.sched_getaffinity(0)
