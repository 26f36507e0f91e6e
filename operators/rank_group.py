"""torchrun and its ranks as one child of the task. Their output is streamed; no process outlives the child."""

import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from hetero_airflow.errors import FencedOut, HeteroError
from hetero_airflow.operators.gang_rendezvous import RendezvousMember
from hetero_airflow.recovery.classification import classify
from hetero_airflow.recovery.evidence import Evidence, RaisedException
from hetero_airflow.recovery.failure import FailureClass
from hetero_airflow.runtime.rank_process import (
    PARENT_VARIABLE,
    RANKS_VARIABLE,
    RESULT_VARIABLE,
    RankExit,
    latest_rank_exits,
    output_pipe,
    read_rank_exits,
)
from hetero_airflow.runtime.torchrun import read_exit_codes
from hetero_airflow.settings import CONTROL_VARIABLE

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""

MAX_LINE = 16_384
"""Bytes; longer lines are split."""

MAX_TAIL = 65_536
"""Bytes of each rank's last lines that stay in memory."""

_POLL_INTERVAL_S = 0.2
_READ_SIZE = 65_536


SHOWN_LINES = 20
"""Number of the failed rank's last lines in the error."""

_CONSEQUENCES = frozenset({FailureClass.NETWORK})
"""Failure classes that the end of another rank causes."""

_FENCED_OUT = f"{FencedOut.__module__}.{FencedOut.__qualname__}"


class RanksFailed(HeteroError, RuntimeError):
    """torchrun gave up. `rank` failed first, or torchrun itself if None; `evidence` is what is known about it."""

    def __init__(self, asked: str, *, rank: int | None, evidence: Evidence, tail: str) -> None:
        self.rank = rank
        self.evidence = evidence
        who = "torchrun itself" if rank is None else f"rank {rank}"
        finding = classify(evidence)
        super().__init__(
            asked,
            found=f"that {who} failed: it {finding.failure_class.description} ({finding.evidence})",
            remedy="See the task's log for the output of each rank",
        )
        self.args = (f"{self.args[0]} Its last lines:\n{tail}",)


def failure_of_ranks(
    group: "RankGroup", exit_code: int, target: Sequence[str], count: int, oom_kills: int | None
) -> RanksFailed:
    """The error to raise after torchrun has given up.

    :param oom_kills: see `Evidence.oom_kills`
    """
    asked = f"to run {count} processes of {' '.join(target[:2]) if target[0] == '-m' else target[0]}"
    failed = _failed_ranks(group)
    if not failed:
        tail = group.tail(None)
        evidence = Evidence(log=tail, exit_code=exit_code, oom_kills=oom_kills)
        return RanksFailed(asked, rank=None, evidence=evidence, tail=_last_lines(tail))
    rank, evidence = next((failure for failure in failed if not is_consequence(failure[1])), failed[0])
    evidence = replace(evidence, oom_kills=oom_kills)
    return RanksFailed(asked, rank=rank, evidence=evidence, tail=_last_lines(group.tail(rank)))


def evidence_of_end(end: RankExit, log: str = "", exit_code: int | None = None) -> Evidence:
    """The evidence in a rank's own report of its failure."""
    raised = tuple(RaisedException(type=name, text=text) for name, text in end.raised)
    return Evidence(raised=raised, log=log, exit_code=exit_code)


def _failed_ranks(group: "RankGroup") -> list[tuple[int, Evidence]]:
    """(rank, evidence) of the last start's failures, in order. Killed ranks come before those that left a report."""
    codes = group.exit_codes()
    reports = {end.rank: end for end in group.ends()}
    killed = [
        (rank, Evidence(log=group.tail(rank), exit_code=code))
        for rank, code in codes.items()
        if rank not in reports and code != -signal.SIGTERM  # torchrun sends it to the ranks that are left
    ]
    reported = [
        (rank, evidence_of_end(end, group.tail(rank), codes.get(rank))) for rank, end in reports.items() if end.raised
    ]
    return killed + reported


def is_consequence(evidence: Evidence) -> bool:
    """Whether the failure is a consequence of another rank's end."""
    return classify(evidence).failure_class in _CONSEQUENCES


def is_fenced_out(evidence: Evidence) -> bool:
    """Whether a newer run of the task has started, so that no further start of this one can succeed."""
    return any(raised.type == _FENCED_OUT for raised in evidence.raised)


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-SHOWN_LINES:])


class RankGroup:
    """One start of torchrun with a number of processes. Use it in a ``with`` statement.

    :param target: what follows torchrun's own arguments: a script or ``-m`` and a module, then their arguments
    :param environment: the whole environment of all processes
    :param log: gets each line, prefixed with the rank
    :param member: for a gang: how to reach the other members, which have the same number of processes; None without one
    """

    def __init__(
        self,
        target: Sequence[str],
        processes: int,
        max_restarts: int,
        environment: Mapping[str, str],
        log: Any,
        member: RendezvousMember | None = None,
    ) -> None:
        # in the folder that the supervisor removes even if this process is killed
        self.folder = Path(tempfile.mkdtemp(prefix="hetero-ranks-", dir=os.environ.get(CONTROL_VARIABLE)))
        self.result = self.folder / "result.json"
        """The file where rank 0 may write the result."""
        self._streams = selectors.DefaultSelector()
        self.first_rank = 0 if member is None else member.gang.rank * processes
        self._lines = [_LineBuffer(f"rank {self.first_rank + number}", log) for number in range(processes)]
        self._torchrun_lines = _LineBuffer("torchrun", log)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended = False
        self._incurable: RankExit | None = None
        self._command = [
            *(sys.executable, "-m", "hetero_airflow.runtime.torchrun", *_rendezvous_arguments(member)),
            *(
                f"--nproc-per-node={processes}",
                f"--max-restarts={max_restarts}",
                f"--log-dir={self.folder / 'torchrun'}",
            ),
            *("-m", "hetero_airflow.runtime.rank_process", *target),
        ]
        fixed = {
            RANKS_VARIABLE: str(self.folder),
            RESULT_VARIABLE: str(self.result),
            PARENT_VARIABLE: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": f"{GRACE_S:g}",
            # Otherwise all starts share one store, where Gloo finds the addresses of earlier ranks: it is refused or
            # waits for half an hour (pytorch/pytorch#135712; seen with torch 2.13 in 3 of 5 runs with a restart).
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        self._environment = {**(member.variables if member else {}), **environment, **fixed}
        self._inherited = [member.listener.fileno()] if member and member.listener else []

    def __enter__(self) -> "RankGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for key in list(self._streams.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
        self._streams.close()
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, is_incurable: Callable[[RankExit], bool]) -> int:
        """Start torchrun, wait for its end, and return its exit code.

        :param is_incurable: whether no further start can cure a rank's failure; then all ranks are ended at once
        """
        for rank, lines in enumerate(self._lines):
            pipe = output_pipe(self.folder, rank)
            os.mkfifo(pipe, 0o600)
            # also open for writing: a restarted rank finds a reader, and we see no end of file in between
            self._streams.register(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), selectors.EVENT_READ, lines)
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=self._inherited,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._streams.register(self._process.stdout, selectors.EVENT_READ, self._torchrun_lines)
        if self._is_ended:  # by a signal before the process was there
            self.end()
        seen: set[tuple[int, int]] = set()
        while self._process.poll() is None:
            self._read(_POLL_INTERVAL_S)
            for end in read_rank_exits(self.folder):
                is_new = (end.restart, end.rank) not in seen
                seen.add((end.restart, end.rank))
                if is_new and is_incurable(end):
                    self._incurable = end
                    self.end()
        self.end()
        while self._read(0):
            pass
        for lines in (*self._lines, self._torchrun_lines):
            lines.close()
        return self._process.returncode

    def end(self) -> None:
        """Stop all processes: SIGTERM, then SIGKILL after `GRACE_S`. May be called twice, and from a signal handler."""
        self._is_ended = True
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)  # its ranks die with it: see `rank_process.die_with_parent`
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
        self._kill_marked()

    def ends(self) -> list[RankExit]:
        """The reports of the ranks of the last start, in the order in which they ended.

        The incurable failure that stopped all ranks comes first, even if torchrun had started them again since.
        """
        ends = latest_rank_exits(self.folder)
        if self._incurable is None or self._incurable in ends:
            return ends
        return [self._incurable, *(end for end in ends if end.rank != self._incurable.rank)]

    def exit_codes(self) -> dict[int, int]:
        """Rank → exit code, of the ranks that failed when torchrun gave up."""
        return read_exit_codes(self.folder)

    def tail(self, rank: int | None) -> str:
        """The last lines of a rank; those of torchrun for None or for a rank of another worker."""
        number = -1 if rank is None else rank - self.first_rank
        return (self._lines[number] if 0 <= number < len(self._lines) else self._torchrun_lines).tail()

    def _read(self, wait_s: float) -> bool:
        """Read the available output. Returns whether there was any."""
        has_data = False
        for key, _ in self._streams.select(wait_s):
            data = os.read(key.fd, _READ_SIZE)
            if data:
                key.data.feed(data)
                has_data = True
            else:
                self._streams.unregister(key.fileobj)  # torchrun has closed it
        return has_data

    def _kill_marked(self) -> None:
        """Kill the ranks and their children, including those in sessions of their own."""
        end = time.monotonic() + GRACE_S
        while (left := self._marked()) and time.monotonic() < end:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.01)

    def _marked(self) -> list[psutil.Process]:
        marked = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                is_ours = process.environ().get(RANKS_VARIABLE) == str(self.folder)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    marked.append(process)
        return marked


def _rendezvous_arguments(member: RendezvousMember | None) -> list[str]:
    if member is None:
        return ["--standalone", "--local-addr=localhost"]
    listen = f",listen_fd={member.listener.fileno()}" if member.listener else ""
    return [
        f"--nnodes={member.gang.size}",
        "--rdzv-backend=hetero",
        f"--rdzv-endpoint={member.rendezvous.address}:{member.rendezvous.port}",
        f"--rdzv-id={member.gang.name}",
        f"--rdzv-conf=rank={member.gang.rank}{listen}",
        f"--local-addr={member.address}",
    ]


class _LineBuffer:
    """Splits a byte stream into lines, logs them, and keeps the last ones."""

    def __init__(self, name: str, log: Any) -> None:
        self._name = name
        self._log = log
        self._rest = b""
        self._last: deque[bytes] = deque()
        self._size = 0

    def feed(self, data: bytes) -> None:
        *lines, self._rest = re.split(rb"[\r\n]+", self._rest + data)
        while len(self._rest) > MAX_LINE:
            lines.append(self._rest[:MAX_LINE])
            self._rest = self._rest[MAX_LINE:]
        for line in lines:
            self._emit(line)

    def close(self) -> None:
        self._emit(self._rest)
        self._rest = b""

    def tail(self) -> str:
        return b"\n".join(self._last).decode(errors="replace")

    def _emit(self, line: bytes) -> None:
        if not line.strip():
            return
        self._last.append(line)
        self._size += len(line)
        while self._size > MAX_TAIL:
            self._size -= len(self._last.popleft())
        self._log.info("[%s] %s", self._name, line.decode(errors="replace"))
