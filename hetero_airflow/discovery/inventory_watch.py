"""Looks at the hardware of this host again and again, without ever blocking the caller's loop."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO

from pydantic import ValidationError

from hetero_airflow.model.worker import Inventory, Worker

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "hetero_airflow.discovery")
"""Prints an `Inventory` as JSON; gets the worker's id, its labels, and the time limit of a probe."""


def with_missing_devices(worker: Worker, known: Worker) -> Worker:
    """The worker with the devices that were known before, where a probe failed: not seen is not gone.

    They get no task until a discovery sees them again.
    """
    if not worker.problems:
        return worker
    seen = {device.id for device in worker.devices}
    lost = {"leasable": False, "problem": f"not seen now: {worker.problems[0]}"[:500]}
    unseen = tuple(device.model_copy(update=lost) for device in known.devices if device.id not in seen)
    return worker.model_copy(update={"devices": worker.devices + unseen})


class InventoryWatch:
    """Runs discovery in a process of its own; `poll` picks up what it found.

    :param interval_s: between the beginnings of two discoveries; twice the probes' time limit if that is more
    """

    def __init__(self, worker_id: str, labels: Mapping[str, str], *, interval_s: float, probe_timeout_s: float) -> None:
        self._words = (worker_id, json.dumps(dict(labels)), str(probe_timeout_s))
        self._interval_s = max(interval_s, 2 * probe_timeout_s)
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._next_at = 0.0
        self._problems: tuple[str, ...] = ()

    def poll(self) -> Inventory | None:
        """The newest inventory if one has just come in; starts a discovery when one is due. Never blocks."""
        if self._process is None:
            if time.monotonic() >= self._next_at:
                self._begin()
            return None
        if self._process.poll() is None:
            if time.monotonic() >= self._next_at:
                self._process.kill()
            return None
        return self._finish()

    def close(self) -> None:
        """Stop a discovery that is under way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._output is not None:
            self._output.close()

    def _begin(self) -> None:
        self._next_at = time.monotonic() + self._interval_s
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  closed when the process has ended
        self._process = subprocess.Popen([*COMMAND, *self._words], stdin=subprocess.DEVNULL, stdout=self._output)

    def _finish(self) -> Inventory | None:
        assert self._process is not None
        assert self._output is not None
        code, self._process = self._process.returncode, None
        with self._output as output:
            output.seek(0)
            text = output.read()
        if code != 0:
            log.warning("Discovery ended with code %s; the last inventory is kept.", code)
            return None
        try:
            inventory = Inventory.model_validate_json(text)
        except ValidationError as error:
            log.warning("Discovery answered with something unreadable; the last inventory is kept: %s", error)
            return None
        if inventory.problems != self._problems:
            self._problems = inventory.problems
            for problem in inventory.problems:
                log.warning("Discovery: %s", problem)
        return inventory
