"""CPU time of one probe of 8 NVIDIA GPUs, in this checkout and in a commit, in turns.

``make bench-discover COMMIT=HEAD~``. NVML is replayed from a fixture at next to no cost, so only the probe's own work
counts.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "tests/fixtures/nvidia/dgx-a100.json"
GPUS, PROBES, TURNS = 8, 100, 15


class ReplayedNvml:
    """The module pynvml with the answers of the fixture's first GPU for each of the GPUs."""

    def __init__(self, pynvml, answers):
        self._pynvml = pynvml
        gpu = answers["gpus"][0] | {"nvmlDeviceGetComputeRunningProcesses": [], "nvmlDeviceGetMinorNumber": 0}
        gpu["nvmlDeviceGetGraphicsRunningProcesses"] = []
        self._answers = {name: to_struct(value) for name, value in {**gpu, **answers["system"]}.items()}
        self._answers["nvmlDeviceGetPcieThroughput"] = 1000
        self._answers["nvmlDeviceGetCount"] = GPUS

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            return self.__dict__.setdefault(name, getattr(self._pynvml, name))
        return self.__dict__.setdefault(name, self._call(name))

    def _call(self, name):
        if name in self._answers:
            return lambda *_: self._answers[name]

        def refuse(*_):
            raise self._pynvml.NVMLError_NotSupported

        return refuse

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, index):
        return f"GPU-{index:08x}-0000-0000-0000-000000000000"

    def nvmlDeviceGetPciInfo(self, index):
        return SimpleNamespace(busId=f"00000000:{index + 1:02X}:00.0")


def to_struct(answer):
    if isinstance(answer, dict):
        return SimpleNamespace(**{key: to_struct(value) for key, value in answer.items()})
    return [to_struct(value) for value in answer] if isinstance(answer, list) else answer


def measure():
    """Milliseconds of CPU time of a probe, in this process."""
    import pynvml

    from hetero_airflow.discovery import nvidia

    nvml = ReplayedNvml(pynvml, json.loads(ANSWERS.read_text()))
    devices = nvidia.parse(nvidia.read(nvml)).devices
    assert sum(device.leasable for device in devices) == GPUS, devices
    start = time.process_time()
    for _ in range(PROBES):
        nvidia.parse(nvidia.read(nvml))
    return (time.process_time() - start) / PROBES * 1000


def main(commit):
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        figures = {folder: [], str(ROOT): []}
        for _ in range(TURNS):
            for checkout, times in figures.items():
                command = [sys.executable, __file__]
                times.append(float(subprocess.check_output(command, env={"PYTHONPATH": checkout}, text=True)))
    before, now = figures.values()
    for name, times in ((commit, before), ("this checkout", now)):
        print(f"{min(times):.3f} to {max(times):.3f} ms, median {median(times):.3f} ms of CPU time  {name}")
    print(f"{median(now) / median(before):.2f} ×")


if __name__ == "__main__":
    if sys.argv[1:]:
        main(sys.argv[1])
    else:
        print(measure())
