"""The process that renders templates: ``python -m hetero_airflow.executor.templates.render_process PARENT``.

It reads jobs from its standard input and writes answers to its standard output; see `pack_job` and `RenderAnswer`. Each
job runs in a fork with limits that the kernel enforces. The process ends when its input ends or its parent is gone.
"""

import json
import os
import resource
import selectors
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from hetero_airflow.contract.rendering import load_arguments, load_context, render_arguments
from hetero_airflow.errors import RequestError
from hetero_airflow.executor.templates.turn_queue import TurnQueue

CPU_S = 1
"""CPU time of one job. An ordinary one takes some milliseconds."""

TIME_S = 60
"""Time of one job. It is much longer than `CPU_S`: the process has a low priority, and a host may be busy."""

MEMORY_BYTES = 160 << 20
"""Data of a fork; about 30 MiB of it are what Python and the modules need."""

MAX_ANSWER_BYTES = 256 << 10
"""The scheduler's loop reads it."""

_MAX_FORKS = 2
_PARENT_CHECK_S = 5.0


class RenderJob(NamedTuple):
    """What is rendered."""

    number: int
    arguments: str
    """JSON."""
    context: str
    """JSON, see `load_context`."""


def pack_job(dag_id: str, job: RenderJob) -> bytes:
    """One job on the input: a line with a JSON array."""
    return json.dumps([dag_id, *job]).encode() + b"\n"


class RenderAnswer(NamedTuple):
    """One line on the output, as a JSON array."""

    number: int
    status: int
    """0, or how the fork ended: an exit code, or the negative number of a signal."""
    text: str
    """JSON: an object with the request, with an error and its text, or with the limit that was exceeded."""


@dataclass(slots=True)
class _Fork:
    pid: int
    number: int
    text: bytearray = field(default_factory=bytearray)


class RenderProcess:
    """Takes turns between DAGs, and runs a few forks at the same time.

    :param jobs: the descriptor with the jobs
    :param answers: the descriptor for the answers
    :param parent: the pid of the scheduler. When it is gone the process ends: forks of it may keep the input open
    """

    def __init__(self, jobs: int, answers: int, parent: int) -> None:
        self._jobs = jobs
        self._answers = answers
        self._parent = parent
        self._selector = selectors.DefaultSelector()
        self._selector.register(jobs, selectors.EVENT_READ)
        self._input = bytearray()
        self._waiting: TurnQueue[RenderJob] = TurnQueue()
        self._forks = 0

    def run(self) -> None:
        """Work until the input ends or the parent is gone."""
        is_open = True
        while is_open and os.getppid() == self._parent:
            for key, _ in self._selector.select(_PARENT_CHECK_S):
                if key.data is None:
                    is_open = self._read_jobs()
                else:
                    self._read_answer(key.fd, key.data)
            while self._waiting and self._forks < _MAX_FORKS:
                self._start_next()

    def _read_jobs(self) -> bool:
        """Whether the input is still open."""
        data = os.read(self._jobs, 1 << 20)
        self._input += data
        *lines, self._input = self._input.split(b"\n")
        for line in lines:
            dag_id, *job = json.loads(line)
            self._waiting.put(dag_id, RenderJob(*job))
        return bool(data)

    def _start_next(self) -> None:
        job = self._waiting.take()
        output, child_output = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(self._jobs)
            os.close(self._answers)
            _render_in_fork(job, child_output)
        os.close(child_output)
        self._forks += 1
        self._selector.register(output, selectors.EVENT_READ, _Fork(pid, job.number))

    def _read_answer(self, output: int, fork: _Fork) -> None:
        data = os.read(output, 1 << 16)
        fork.text += data
        if data and len(fork.text) <= MAX_ANSWER_BYTES:
            return
        with suppress(ProcessLookupError):
            os.kill(fork.pid, signal.SIGKILL if data else 0)
        _, wait_status = os.waitpid(fork.pid, 0)
        self._selector.unregister(output)
        os.close(output)
        self._forks -= 1
        status = os.waitstatus_to_exitcode(wait_status)
        answer = RenderAnswer(fork.number, status, fork.text.decode(errors="replace") if status == 0 else "")
        line = memoryview(json.dumps(answer).encode() + b"\n")
        while line:
            line = line[os.write(self._answers, line) :]


def _render_in_fork(job: RenderJob, output: int) -> NoReturn:
    """Render one job within the limits, and end the process."""
    code = 1
    try:
        _limit()
        text = memoryview(json.dumps(_outcome(job)).encode())
        while text:
            text = text[os.write(output, text) :]
        code = 0
    finally:
        os._exit(code)


def _limit() -> None:
    signal.setitimer(signal.ITIMER_REAL, TIME_S)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if the host has no memory left, this is what ends


def _outcome(job: RenderJob) -> dict[str, Any]:
    try:
        request = render_arguments(load_arguments(job.arguments), load_context(job.context))
        return {"request": request.model_dump(mode="json", exclude_defaults=True)}
    except RequestError as error:
        return {"error": error.__dict__, "text": str(error)}
    except MemoryError:
        return {"limit": f"needs more than {MEMORY_BYTES >> 20} MiB of memory"}


if __name__ == "__main__":
    os.nice(10)  # beside a busy process it gets a tenth of a core
    RenderProcess(sys.stdin.fileno(), sys.stdout.fileno(), int(sys.argv[1])).run()
