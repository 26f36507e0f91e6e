"""Keeps the readings of this host's devices fresh between two discoveries.

A discovery starts Python again for each probe: 0.4 s of CPU time on a host without accelerators. Here each probe has a
process that stays and reads when it is asked: 1 ms for the CPU, in 33 MB of memory. So readings can be asked for with
every heartbeat, while the inventory is read once a minute. A reading that is too old becomes unknown.
"""

import fcntl
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from pydantic import BaseModel, ValidationError

from hetero_airflow.discovery import GROUP, PROBES
from hetero_airflow.discovery.discover import has_trace
from hetero_airflow.discovery.isolation import MAX_ANSWER_BYTES, end_process
from hetero_airflow.discovery.probe_process import run_probe
from hetero_airflow.model.device import Telemetry
from hetero_airflow.registry import names

MAX_AGE_S = 5.0
"""Of a reading when it is reported. The next report replaces it 5 s later, when it is at most 10 s old."""

_MIN_LEAD_S, _MAX_LEAD_S = 0.5, 4.5
_CHECK_EVERY_S = 30.0
"""Interval between two looks whether a reader is missing."""
_UNASKED_S = 60
_PIPE_BYTES = 1 << 20


class Answer(BaseModel):
    """What a reader has read, and how long that took."""

    readings: tuple[Telemetry, ...] = ()
    took_s: float = 0.0


class ReadingsWatch:
    """Asks the readers of this host, and knows their last answers. Nothing here waits for one.

    :param start: starts the reader of a probe
    :param clock: seconds that only grow
    """

    def __init__(self, start: "Callable[[str], ReaderProcess]", clock: Callable[[], float] = time.monotonic) -> None:
        self._start, self._clock = start, clock
        self._readers: dict[str, ReaderProcess] = {}
        self._asked_at: dict[str, float] = {}
        """Probe → when it was asked what it has not answered yet."""
        self._took_s: dict[str, float] = {}
        """Probe → how long its last answer took."""
        self._known: dict[str, tuple[float, Telemetry]] = {}
        """Device → its last reading, and when that was asked for."""
        self._check_at = 0.0

    @property
    def lead_s(self) -> float:
        """How long before a report to ask, so that the answers are there."""
        if not self._took_s or len(self._took_s) < len(self._readers):
            return _MAX_LEAD_S
        return min(_MAX_LEAD_S, max(self._took_s.values()) + _MIN_LEAD_S)

    def take(self, readings: Iterable[Telemetry], at: float) -> None:
        """Take the readings of a discovery that began then. The devices are those that it found."""
        found = {reading.device_id: (at, reading) for reading in readings}
        newer = {device_id: self._known[device_id] for device_id in found.keys() & self._known.keys()}
        self._known = found | {device_id: known for device_id, known in newer.items() if known[0] > at}

    def ask(self) -> None:
        """Let each probe read that has answered; start the readers that are missing."""
        now = self._clock()
        self._poll()
        if now >= self._check_at:
            self._check_at = now + _CHECK_EVERY_S
            for name in names(GROUP, PROBES):
                if name not in self._readers and has_trace(name, os.environ):
                    with suppress(OSError):  # no process can be started, so the readings become unknown
                        self._readers[name] = self._start(name)
        for name, reader in list(self._readers.items()):
            if not reader.is_alive:
                self._drop(name)
            elif name not in self._asked_at:
                reader.ask()
                self._asked_at[name] = now

    def readings(self) -> tuple[Telemetry, ...]:
        """The reading of each device; without values if the last one is too old."""
        now = self._clock()
        self._poll()
        return tuple(
            reading if now - at <= MAX_AGE_S else Telemetry(device_id=device_id)
            for device_id, (at, reading) in self._known.items()
        )

    def close(self) -> None:
        """End the readers."""
        for name in list(self._readers):
            self._drop(name)

    def _poll(self) -> None:
        for name in reversed(list(self._asked_at)):  # of two readings of a device, that of the first probe stays
            answer = self._readers[name].poll()
            if answer is None:
                continue
            at = self._asked_at.pop(name)
            self._took_s[name] = answer.took_s
            for reading in answer.readings:
                if reading.device_id in self._known:
                    self._known[reading.device_id] = (at, reading)

    def _drop(self, name: str) -> None:
        self._readers.pop(name).close()
        self._asked_at.pop(name, None)
        self._took_s.pop(name, None)


class ReaderProcess:
    """Reads the devices of one probe, in a process of its own, so that no driver can hang or crash its user.

    :param timeout_s: the process ends itself if an answer takes longer
    """

    def __init__(self, probe: str, timeout_s: float) -> None:
        self._buffer = bytearray()
        self._process = subprocess.Popen(  # -P as in `isolation`
            [sys.executable, "-P", "-m", "hetero_airflow.discovery.readings_watch", probe, str(timeout_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        with suppress(OSError, AttributeError):  # an answer that is longer than the pipe comes in several polls
            fcntl.fcntl(self._output.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def ask(self) -> None:
        """Ask for the next answer."""
        with suppress(OSError):  # it has just ended
            self._input.write(b"\n")

    def poll(self) -> Answer | None:
        """The answer, once it is there; an empty one for a text that is none."""
        while part := self._output.read(_PIPE_BYTES):
            self._buffer += part
        line, end, rest = bytes(self._buffer).partition(b"\n")
        if len(self._buffer) > MAX_ANSWER_BYTES:
            self._process.kill()
        if not end:
            return None
        self._buffer = bytearray(rest)
        try:
            return Answer.model_validate_json(line)
        except ValidationError:
            return Answer()

    def close(self) -> None:
        """End the process; see `end_process`."""
        end_process(self._process)


def serve_readings(probe: str, timeout_s: float) -> None:
    """Read the devices of a probe for each line on standard input, and print one line of JSON.

    Ends with the input. It also ends if nobody asks for a minute: children of a killed scheduler keep the input open.
    """
    with os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        os.dup2(2, 1)  # what vendors' libraries print
        signal.alarm(_UNASKED_S)
        while sys.stdin.readline():
            signal.alarm(math.ceil(timeout_s))
            began = time.monotonic()
            result = run_probe(probe).result
            took_s = round(time.monotonic() - began, 3)
            answer = Answer(readings=() if result is None else result.telemetry, took_s=took_s)
            answers.write(answer.model_dump_json(exclude_defaults=True).encode() + b"\n")
            signal.alarm(_UNASKED_S)


if __name__ == "__main__":
    serve_readings(sys.argv[1], float(sys.argv[2]))
