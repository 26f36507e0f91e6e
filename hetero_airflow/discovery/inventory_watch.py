"""Runs discovery on this host again and again without blocking the caller's loop."""

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO

from pydantic import ValidationError

from hetero_airflow.model.problem_lines import concerns_device
from hetero_airflow.model.worker import MAX_DEVICES, Inventory, Worker

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "hetero_airflow.discovery")
"""Prints an `Inventory` as JSON. Arguments: the worker's id, its labels, the time limit of a probe, and
[hetero] exclude_devices."""


def with_missing_devices(worker: Worker, previous: Worker) -> Worker:
    """The worker; with the devices that it had before and that a problem line concerns, since they may still exist.

    Such a device gets no task until a discovery finds it again.
    """
    present = {device.id for device in worker.devices}
    missing = []
    for device in previous.devices if worker.problems else ():
        line = next((line for line in worker.problems if concerns_device(line, device)), None)
        if line is not None and device.id not in present:
            update = {"leasable": False, "problem": f"not found now: {line}"[:500]}
            missing.append(device.model_copy(update=update))
    return worker.model_copy(update={"devices": (*worker.devices, *missing)[:MAX_DEVICES]}) if missing else worker


class InventoryWatch:
    """Runs discovery in its own process; `poll` returns the result.

    :param interval_s: between the starts of two discoveries; at least twice the probes' time limit
    :param exclude: devices that no task gets: [hetero] exclude_devices
    """

    def __init__(
        self,
        worker_id: str,
        labels: Mapping[str, str],
        *,
        interval_s: float,
        probe_timeout_s: float,
        exclude: str = "",
    ) -> None:
        self._arguments = (worker_id, json.dumps(dict(labels)), str(probe_timeout_s), exclude)
        self._interval_s = max(interval_s, 2 * probe_timeout_s)
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._next_at = 0.0
        self._problems: tuple[str, ...] = ()
        self._is_wanted = False
        self._started_at = 0.0
        self.looked_at = 0.0
        """When the discovery started that gave the last inventory, on the clock `time.monotonic`."""

    def poll(self) -> Inventory | None:
        """A new inventory if there is one; starts a discovery when one is due. Never blocks."""
        if self._process is None:
            if self._is_wanted or time.monotonic() >= self._next_at:
                self._start()
            return None
        if self._process.poll() is None:
            if time.monotonic() >= self._next_at:
                self._process.kill()
            return None
        return self._finish()

    def refresh(self) -> None:
        """Start a discovery at the next `poll` after the running one, if there is one."""
        self._is_wanted = True

    @property
    def is_running(self) -> bool:
        """Whether a discovery runs, or starts at the next `poll`."""
        return self._process is not None or self._is_wanted

    def close(self) -> None:
        """Stop a running discovery."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._output is not None:
            self._output.close()

    def _start(self) -> None:
        self._started_at, self._is_wanted = time.monotonic(), False
        self._next_at = self._started_at + self._interval_s
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process has ended
        self._process = subprocess.Popen([*COMMAND, *self._arguments], stdin=subprocess.DEVNULL, stdout=self._output)

    def _finish(self) -> Inventory | None:
        assert self._process is not None
        assert self._output is not None
        code, self._process = self._process.returncode, None
        with self._output as output:
            output.seek(0)
            text = output.read()
        if code != 0:
            log.warning("Discovery ended with code %s; the last inventory stays in use.", code)
            return None
        try:
            inventory = Inventory.model_validate_json(text)
        except ValidationError as error:
            log.warning("Discovery gave an unreadable answer; the last inventory stays in use: %s", error)
            return None
        if inventory.problems != self._problems:
            self._problems = inventory.problems
            for problem in inventory.problems:
                log.warning("Discovery: %s", problem)
        self.looked_at = self._started_at
        return inventory
