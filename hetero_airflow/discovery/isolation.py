"""Runs each probe in its own process, so that no probe can hang, crash or flood discovery.

All processes start together and share one time limit. A selector reads their answers up to a size limit. At the end
each process's whole group is killed, so no vendor's tool stays behind.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic import ValidationError

from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.discovery.probe_process import ProbeReply
from hetero_airflow.discovery.sources.values import to_text
from hetero_airflow.errors import shorten

MAX_ANSWER_BYTES = 4 << 20
"""4096 devices with their telemetry are 3.8 MB."""

MAX_LINE = 500
_MODULE = "hetero_airflow.discovery.probe_process"
_MAX_STDERR_BYTES = 4096
_GRACE_S = 1.0
"""How long a killed process may take to end; a process that waits for a driver in the kernel may never end."""


@dataclass
class _ProbeProcess:
    name: str
    process: subprocess.Popen[bytes]
    answer: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    """The end of its standard error."""
    is_done: bool = False
    """It has closed its answer, or its answer is too long."""


def run_probes(names: Iterable[str], timeout_s: float) -> dict[str, ProbeResult | str]:
    """Probe name → its result, or one line with the reason for none. Blocks for about `timeout_s` at most."""
    results: dict[str, ProbeResult | str] = {}
    probes: list[_ProbeProcess] = []
    deadline = time.monotonic() + timeout_s
    try:
        for name in names:
            results[name] = ""  # keeps the order
            try:
                probes.append(_ProbeProcess(name, _start_process(name, timeout_s)))
            except OSError as error:
                results[name] = probe_line(
                    name, f"{sys.executable} can't be started: {error}. Check the host's limits."
                )
        _read_replies(probes, deadline)
        for probe in probes:
            results[probe.name] = _result_of(probe, timeout_s, deadline)
    finally:
        for probe in probes:
            end_process(probe.process)
    return results


def probe_line(name: str, text: str) -> str:
    """One line about a probe, of at most `MAX_LINE` characters.

    >>> probe_line("nvidia", "two\\nlines")
    'nvidia: two lines'
    """
    return f"{name[:64]}: {to_text(text, limit=MAX_LINE - 66) or 'no text'}"


def _start_process(name: str, timeout_s: float) -> subprocess.Popen[bytes]:
    # -P: no file in the working directory may replace a vendor's library.
    return subprocess.Popen(  # this Python, no shell
        [sys.executable, "-P", "-m", _MODULE, name, str(timeout_s + 2 * _GRACE_S)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _read_replies(probes: Iterable[_ProbeProcess], deadline: float) -> None:
    """Read all pipes until each answer is complete or too long, or until the deadline."""
    with selectors.DefaultSelector() as selector:
        for probe in probes:
            for pipe in (probe.process.stdout, probe.process.stderr):
                assert pipe is not None
                selector.register(pipe, selectors.EVENT_READ, probe)
        waiting = list(probes)
        while waiting and (remaining_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(remaining_s):
                _read_pipe(selector, key)
            waiting = [probe for probe in waiting if not probe.is_done]


def _read_pipe(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    probe: _ProbeProcess = key.data
    data = os.read(key.fd, 65536)
    is_open = bool(data)
    if key.fileobj is probe.process.stderr:
        probe.stderr = (probe.stderr + data)[-_MAX_STDERR_BYTES:]
    else:
        probe.answer += data
        is_open = is_open and len(probe.answer) <= MAX_ANSWER_BYTES
        probe.is_done = not is_open
    if not is_open:
        selector.unregister(key.fileobj)


def _result_of(probe: _ProbeProcess, timeout_s: float, deadline: float) -> ProbeResult | str:
    by_hand = f'Run "python -m {_MODULE} {probe.name}" by hand.'
    if not probe.is_done:
        return probe_line(probe.name, f"no answer within {timeout_s:g} s. {by_hand} Or raise [hetero] probe_timeout_s.")
    if len(probe.answer) > MAX_ANSWER_BYTES:
        return probe_line(probe.name, f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB. {by_hand}")
    try:
        answer = ProbeReply.model_validate_json(bytes(probe.answer))
    except ValidationError:
        return probe_line(probe.name, f"{_exit_text(probe, deadline)}. {by_hand}")
    if answer.result is None:
        return probe_line(probe.name, answer.error or f"an empty answer. {by_hand}")
    return answer.result


def _exit_text(probe: _ProbeProcess, deadline: float) -> str:
    """How a process without a valid answer ended, and the end of its output."""
    with suppress(subprocess.TimeoutExpired):
        probe.process.wait(max(0.1, min(_GRACE_S, deadline - time.monotonic())))
    code = probe.process.returncode
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
    output = probe.answer or probe.stderr
    end = shorten(bytes(output[-120:]).decode(errors="replace").strip(), limit=160)
    if probe.answer:
        return f"its process answered {len(probe.answer)} bytes that are no result, ending in {end}"
    return f"its process ended with code {code} and no answer" + (f", its last output {end}" if output else "")


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started. One that waits for a driver in the kernel may stay."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def problem_lines(results: Mapping[str, ProbeResult | str]) -> list[str]:
    """The lines of all probes: one for each probe without a result, and the problems that the others report."""
    lines: list[str] = []
    for name, result in results.items():
        lines += [result] if isinstance(result, str) else [probe_line(name, text) for text in result.problems[:32]]
    return lines
