"""Runs probes, each in a process of its own, so that none can hang, crash or flood discovery.

All processes start together and share one time limit; a selector reads their answers, bounded. An
ended process takes its whole process group with it, so no vendor's tool is left behind.
"""

from __future__ import annotations

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
_MAX_WORDS_BYTES = 4096
_GRACE_S = 1.0
"""How long a process that was killed may take to go; one that waits for a driver in the kernel may never."""


@dataclass
class _ProbeProcess:
    name: str
    process: subprocess.Popen[bytes]
    answer: bytearray = field(default_factory=bytearray)
    words: bytearray = field(default_factory=bytearray)
    """The end of what it wrote to standard error."""
    is_done: bool = False
    """It closed its answer, or said too much."""


def run_probes(names: Iterable[str], timeout_s: float) -> dict[str, ProbeResult | str]:
    """Probe name → its result, or one line that says why there is none. Blocks for about `timeout_s` at most."""
    results: dict[str, ProbeResult | str] = {}
    children: list[_ProbeProcess] = []
    deadline = time.monotonic() + timeout_s
    try:
        for name in names:
            results[name] = ""  # keeps the order
            try:
                children.append(_ProbeProcess(name, _start_process(name, timeout_s)))
            except OSError as error:
                results[name] = probe_line(
                    name, f"{sys.executable} can't be started: {error}. Check the host's limits."
                )
        _read_replies(children, deadline)
        for child in children:
            results[child.name] = _result_of(child, timeout_s, deadline)
    finally:
        for child in children:
            _end_process(child.process)
    return results


def probe_line(name: str, text: str) -> str:
    """One line about a probe, of at most `MAX_LINE` characters.

    >>> probe_line("nvidia", "two\\nlines")
    'nvidia: two lines'
    """
    return f"{name[:64]}: {to_text(text, limit=MAX_LINE - 66) or 'no text'}"


def _start_process(name: str, timeout_s: float) -> subprocess.Popen[bytes]:
    # -P: a file in the working directory must not stand in for a vendor's library.
    return subprocess.Popen(  # this Python, no shell
        [sys.executable, "-P", "-m", _MODULE, name, str(timeout_s + 2 * _GRACE_S)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _read_replies(children: Iterable[_ProbeProcess], deadline: float) -> None:
    """Read all pipes until each answer is complete or too long, or time is up."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            for pipe in (child.process.stdout, child.process.stderr):
                assert pipe is not None
                selector.register(pipe, selectors.EVENT_READ, child)
        waiting = {child.name for child in children}
        while waiting and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                child = key.data
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                if key.fileobj is child.process.stderr:
                    child.words = (child.words + data)[-_MAX_WORDS_BYTES:]
                    continue
                child.answer += data
                if not data or len(child.answer) > MAX_ANSWER_BYTES:
                    child.is_done = True
                    waiting.discard(child.name)
                    if data:
                        selector.unregister(key.fileobj)


def _result_of(child: _ProbeProcess, timeout_s: float, deadline: float) -> ProbeResult | str:
    by_hand = f'Run "python -m {_MODULE} {child.name}" by hand.'
    if not child.is_done:
        return probe_line(child.name, f"no answer within {timeout_s:g} s. {by_hand} Or raise [hetero] probe_timeout_s.")
    if len(child.answer) > MAX_ANSWER_BYTES:
        return probe_line(child.name, f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB. {by_hand}")
    try:
        answer = ProbeReply.model_validate_json(bytes(child.answer))
    except ValidationError:
        return probe_line(child.name, f"{_exit_text(child, deadline)}. {by_hand}")
    if answer.result is None:
        return probe_line(child.name, answer.error or f"an empty answer. {by_hand}")
    return answer.result


def _exit_text(child: _ProbeProcess, deadline: float) -> str:
    """How a process that gave no proper answer ended, and its last words."""
    with suppress(subprocess.TimeoutExpired):
        child.process.wait(max(0.1, min(_GRACE_S, deadline - time.monotonic())))
    code = child.process.returncode
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"its process was ended by {signal.Signals(-code).name}"
    said = child.answer or child.words
    words = shorten(bytes(said[-120:]).decode(errors="replace").strip(), limit=160)
    if child.answer:
        return f"its process answered {len(child.answer)} bytes that are no result, ending in {words}"
    return f"its process ended with code {code} and no answer" + (f", its last words {words}" if said else "")


def _end_process(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def problem_lines(results: Mapping[str, ProbeResult | str]) -> list[str]:
    """The lines of all probes: one for each that gave no result, and those that the others report."""
    lines: list[str] = []
    for name, result in results.items():
        texts = [result] if isinstance(result, str) else [probe_line(name, text) for text in result.problems[:32]]
        lines += texts
    return lines
