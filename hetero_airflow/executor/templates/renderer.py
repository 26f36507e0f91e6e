"""The scheduler's side of rendering: sends jobs to the render process, and reads the answers that are there."""

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hetero_airflow.contract.envelope import is_template
from hetero_airflow.contract.rendering import dump_arguments, dump_context
from hetero_airflow.errors import RequestError, rebuild_error, shorten
from hetero_airflow.executor.templates import render_process
from hetero_airflow.executor.templates.render_process import RenderAnswer, RenderJob, pack_job
from hetero_airflow.executor.templates.turn_queue import TurnQueue
from hetero_airflow.model.request import DeviceRequest

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-m", render_process.__name__)

MAX_BYTES = 256 << 10
"""The arguments of one task, and the params with the conf of one DAG run. The scheduler's loop copies them."""

_MAX_PIPE_BYTES = 1 << 20
_MAX_SENT = 256
"""The render process keeps what it was sent in memory."""
_STALL_S = 3.0 * render_process.TIME_S
"""The render process is replaced if it has jobs and gives no answer for so long."""
_MAX_DELAY_S = 60.0
_KEEP_S = 600.0
"""A result that is not read is dropped after this: Airflow did not want the task any more."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The tasks with the same arguments in the same DAG run: they are rendered once."""

    job: RenderJob
    dag_id: str
    arguments: Mapping[str, Any]
    ids: list[str]


class TemplateRenderer:
    """Renders device arguments in another process. No method blocks.

    The process starts with the first job. If it ends, its jobs wait for the next one.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._jobs: dict[int, _Waiting] = {}
        """Number → job without an answer."""
        self._numbers: dict[tuple[str, str, str], int] = {}
        """DAG, arguments and context → number of that job."""
        self._waiting_ids: set[str] = set()
        self._next_number = 0
        self._unsent: TurnQueue[int] = TurnQueue()
        self._sent = 0
        """Jobs that the process has, or that are in `_output`."""
        self.has_news = False
        """A result has arrived. The reader of the results clears it."""
        self._results: dict[str, tuple[float, DeviceRequest | RequestError]] = {}
        """Id → when it arrived, and what it is; in the order of arrival."""
        self._output = bytearray()
        self._input = bytearray()
        self._answered_at = 0.0
        """When the process started, got its first job, or gave its last answer."""
        self._failures = 0
        self._next_start_at = 0.0

    def knows(self, id_: str) -> bool:
        """Whether a job with this id waits, or its result was not taken yet."""
        return id_ in self._waiting_ids or id_ in self._results

    def submit(self, id_: str, dag_id: str, arguments: Mapping[str, Any], context: str) -> None:
        """Let a job be rendered, after other DAGs had their turns.

        :param context: see `pack_context`
        :raises RequestError: arguments that can't be sent to another process
        """
        packed = _pack(lambda: dump_arguments(arguments), "arguments", arguments)
        if not self._jobs:
            self._answered_at = time.monotonic()
        number = self._numbers.setdefault((dag_id, packed, context), self._next_number)
        if number == self._next_number:
            self._next_number += 1
            self._jobs[number] = _Waiting(RenderJob(number, packed, context), dag_id, arguments, [])
            self._unsent.put(dag_id, number)
        self._jobs[number].ids.append(id_)
        self._waiting_ids.add(id_)
        self.poll()

    def take(self, id_: str) -> DeviceRequest | None:
        """The rendered request, once; None if there is no result yet.

        :raises RequestError: the template can't be rendered, exceeds a limit, or makes no valid request
        """
        _, result = self._results.pop(id_, (0.0, None))
        if isinstance(result, RequestError):
            raise result.with_traceback(None)
        return result

    def poll(self) -> None:
        """Start the process if there are jobs, send what it takes, and read what it has answered."""
        now = time.monotonic()
        if self._process is None and self._jobs and now >= self._next_start_at:
            self._start(now)
        if self._process is not None:
            self._exchange(self._process, now)
        while self._results and now - next(iter(self._results.values()))[0] > _KEEP_S:
            del self._results[next(iter(self._results))]

    def close(self) -> None:
        """End the process and its forks' output."""
        if self._process is None:
            return
        process, self._process = self._process, None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _start(self, now: float) -> None:
        try:
            process = subprocess.Popen(  # this Python, no shell
                [*COMMAND, str(os.getpid())],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")},
                start_new_session=True,
            )
        except OSError as error:
            self._delay(now, str(error))
            return
        self._process, self._answered_at = process, now
        self._input.clear()
        self._output.clear()
        self._unsent, self._sent = TurnQueue(), 0
        for number, waiting in self._jobs.items():
            self._unsent.put(waiting.dag_id, number)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            with suppress(OSError, AttributeError):  # the size is a matter of speed
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _MAX_PIPE_BYTES)

    def _exchange(self, process: subprocess.Popen[bytes], now: float) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        has_ended = self._read(process.stdout.fileno())
        try:
            for answer in self._answers():
                self._answered_at, self._failures = now, 0
                self._take_answer(answer, now)
        except (ValueError, TypeError, KeyError, RecursionError):
            self._replace(now, "it gave an answer that can't be read")
            return
        if has_ended:
            self._replace(now, "it ended")
        elif self._jobs and now - self._answered_at > _STALL_S:
            self._replace(now, f"it gave no answer for {_STALL_S:g} s")
        else:
            self._send(process.stdin.fileno())

    def _replace(self, now: float, text: str) -> None:
        self.close()
        self._delay(now, text)

    def _send(self, pipe: int) -> None:
        """Write as much as the pipe takes, in one call at most `_MAX_PIPE_BYTES`."""
        while self._unsent and self._sent < _MAX_SENT and len(self._output) < _MAX_PIPE_BYTES:
            number = self._unsent.take()
            self._sent += 1
            self._output += pack_job(self._jobs[number].dag_id, self._jobs[number].job)
        with suppress(BlockingIOError, BrokenPipeError):
            while self._output:
                del self._output[: os.write(pipe, self._output[: 1 << 16])]

    def _read(self, output: int) -> bool:
        """Whether the process has closed its output."""
        try:
            while data := os.read(output, 1 << 16):
                self._input += data
        except BlockingIOError:
            return False
        return True

    def _answers(self) -> Iterator[RenderAnswer]:
        *lines, rest = self._input.split(b"\n")
        self._input = bytearray(rest)
        for line in lines:
            yield RenderAnswer(*json.loads(line))

    def _take_answer(self, answer: RenderAnswer, now: float) -> None:
        waiting = self._jobs.pop(answer.number)
        self._sent -= 1
        del self._numbers[waiting.dag_id, waiting.job.arguments, waiting.job.context]
        result = _result(answer, waiting.arguments)
        for id_ in waiting.ids:
            self._waiting_ids.discard(id_)
            self._results[id_] = (now, result)
        self.has_news = True

    def _delay(self, now: float, text: str) -> None:
        self._failures += 1
        delay_s = min(2.0**self._failures, _MAX_DELAY_S)
        self._next_start_at = now + delay_s
        log.warning(
            "The process that renders templates: %s. It starts again in %g s; %d tasks wait for it.",
            text,
            delay_s,
            len(self._waiting_ids),
        )


def pack_context(context: Mapping[str, Any]) -> str:
    """The context of the templates in one DAG run, for `TemplateRenderer.submit`.

    :raises RequestError: it can't be sent to another process
    """
    return _pack(lambda: dump_context(context), "params and conf", {"device": context.get("run_id")})


def _pack(dump: Callable[[], str], name: str, arguments: Mapping[str, Any]) -> str:
    try:
        packed = dump()
    except (TypeError, ValueError, RecursionError) as error:
        found = f"{name} that are no JSON: {shorten(str(error), 200)}"
        raise _error(arguments, found, "Use texts, numbers, lists and mappings") from error
    if len(packed) > MAX_BYTES:
        found = f"{len(packed) >> 10} KiB of {name}, beside a template"
        raise _error(arguments, found, f"Use at most {MAX_BYTES >> 10} KiB where device arguments are templates")
    return packed


def _result(answer: RenderAnswer, arguments: Mapping[str, Any]) -> DeviceRequest | RequestError:
    limit = _limit_text(answer.status)
    if not limit:
        try:
            parts = json.loads(answer.text)
            if "request" in parts:
                return DeviceRequest.model_validate(parts["request"])
            if "error" in parts:
                return rebuild_error(RequestError, parts["error"], str(parts["text"]))
            limit = str(parts["limit"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            limit = "gives no answer"
    remedy = "Let it only choose from params, dag_run, run_id, ds or logical_date"
    return _error(arguments, f"a template that {limit}", remedy)


def _limit_text(status: int) -> str:
    """Why a fork ended without an answer; empty if it gave one."""
    if status == -signal.SIGXCPU:
        return f"needs more than {render_process.CPU_S} s of CPU time"
    if status == -signal.SIGALRM:
        return f"needs more than {render_process.TIME_S} s"
    if status < 0:
        return f"crashes its process (signal {-status})"
    return f"fails in an unknown way (exit code {status})" if status else ""


def _error(arguments: Mapping[str, Any], found: str, remedy: str) -> RequestError:
    """The error about the first argument that is a template."""
    templates = ((name, value) for name, value in arguments.items() if is_template(value))
    name, value = next(templates, ("device", arguments.get("device")))
    return RequestError(name, value, found=found, remedy=remedy)
