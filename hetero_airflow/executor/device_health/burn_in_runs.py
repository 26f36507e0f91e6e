"""Burn-ins of one device: one process after the other. Nothing here blocks the caller."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from pydantic import ValidationError

from hetero_airflow.contract.task_lease import TaskLease
from hetero_airflow.discovery.health.burn_in import BurnInOutcome, BurnInResult
from hetero_airflow.model.device import Device
from hetero_airflow.runtime.visible_devices import lease_environment

COMMAND = (sys.executable, "-P", "-m", "hetero_airflow.discovery.health.burn_in")
"""Computes on one device. Arguments: its name, the seconds to compute, the time limit."""

SECONDS = 20.0
LIMIT_S = 180.0
"""Includes the start of torch, and writing 140 GB."""

_GRACE_S = 1.0


class BurnInRuns:
    """Tests a device, or each instance of a GPU in MIG mode, until one fails.

    :param device_id: the device that gets the result
    """

    def __init__(self, device_id: str, targets: Sequence[Device], worker_id: str) -> None:
        self.device_id = device_id
        self._remaining = list(targets)
        self._worker_id = worker_id
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at = 0.0

    def poll(self) -> BurnInResult | None:
        """The result, once there is one: the first that did not pass, or the last. Starts the next process."""
        if self._process is None:
            untested = self._start()
            if untested is not None:
                return untested
        assert self._process is not None
        if self._process.poll() is None:
            if time.monotonic() < self._kill_at:
                return None
            self.close()
            return BurnInResult(outcome=BurnInOutcome.FAILED, device="", found=f"no answer within {LIMIT_S:g} s")
        result = self._finish(self._process)
        self._process = None
        return result if result.outcome is not BurnInOutcome.PASSED or not self._remaining else None

    def close(self) -> None:
        """Stop the running process; may be called again."""
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # it may never end if the driver hangs
                self._process.wait(_GRACE_S)
            self._process = None
            self._output.close()

    def _start(self) -> BurnInResult | None:
        device = self._remaining[0]
        lease = TaskLease(
            id="burn-in",
            token=0,
            worker=self._worker_id,
            vendor=device.vendor,
            kind=device.kind,
            model=device.model,
            ids=(device.id,),
            indexes=(device.index,),
            memory_bytes=device.memory_bytes,
            share=None,
            cores=device.cores,
            simulated=device.simulated,
        )
        name = "simulated" if device.simulated else lease.torch_device
        if name == "cpu" and device.kind != "cpu":
            found = f"nothing here computes on a {device.vendor} {device.kind}"
            return BurnInResult(outcome=BurnInOutcome.UNTESTED, device=device.id, found=found)
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process has ended
        self._process = subprocess.Popen(
            [*COMMAND, name, str(SECONDS), str(LIMIT_S)],
            env={**os.environ, **lease_environment(lease, os.environ)},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.DEVNULL,
        )
        self._kill_at = time.monotonic() + LIMIT_S
        del self._remaining[0]
        return None

    def _finish(self, process: subprocess.Popen[bytes]) -> BurnInResult:
        with self._output as output:
            output.seek(0)
            text = output.read()
        try:
            return BurnInResult.model_validate_json(text)
        except ValidationError:
            found = f"its process ended with code {process.returncode} and no answer"
            return BurnInResult(outcome=BurnInOutcome.FAILED, device="", found=found)
