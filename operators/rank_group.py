"""torchrun and its ranks as one child of the task: their output is streamed, and none of them outlives it."""

from __future__ import annotations

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
from pathlib import Path
from typing import Any

import psutil

from hetero_airflow.operators.gang_rendezvous import RendezvousMember
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
"""Bytes; a longer line is broken."""

MAX_TAIL = 65_536
"""Bytes of the last lines of each rank that are kept in memory."""

_POLL_INTERVAL_S = 0.2
_READ_SIZE = 65_536


class RankGroup:
    """One start of torchrun with so many processes; use it within ``with``.

    :param target: what follows torchrun's own arguments: a script, or ``-m`` and a module, and its arguments
    :param environment: of all the processes, whole
    :param log: gets each line, with the rank before it
    :param joining: how it meets the other members of its gang, each with as many processes; None: it is alone
    """

    def __init__(
        self,
        target: Sequence[str],
        processes: int,
        max_restarts: int,
        environment: Mapping[str, str],
        log: Any,
        joining: RendezvousMember | None = None,
    ) -> None:
        # within the folder that the supervisor removes, even if this process is killed
        self.folder = Path(tempfile.mkdtemp(prefix="hetero-ranks-", dir=os.environ.get(CONTROL_VARIABLE)))
        self.result = self.folder / "result.json"
        """What rank 0 may have written."""
        self._streams = selectors.DefaultSelector()
        self.first_rank = 0 if joining is None else joining.gang.rank * processes
        self._lines = [_LineBuffer(f"rank {self.first_rank + number}", log) for number in range(processes)]
        self._own_lines = _LineBuffer("torchrun", log)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended = False
        self._hopeless: RankExit | None = None
        self._command = [
            *(sys.executable, "-m", "hetero_airflow.runtime.torchrun", *_rendezvous_arguments(joining)),
            *(f"--nproc-per-node={processes}", f"--max-restarts={max_restarts}"),
            *("-m", "hetero_airflow.runtime.rank_process", *target),
        ]
        own = {
            RANKS_VARIABLE: str(self.folder),
            RESULT_VARIABLE: str(self.result),
            PARENT_VARIABLE: str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": f"{GRACE_S:g}",
            # Else all starts share one store, and Gloo finds the addresses of the ranks before in it: it is refused, or
            # waits for half an hour (pytorch/pytorch#135712; seen with torch 2.13 in 3 of 5 runs with a restart).
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        self._environment = {**(joining.variables if joining else {}), **environment, **own}
        self._inherited = [joining.listener.fileno()] if joining and joining.listener else []

    def __enter__(self) -> RankGroup:
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

    def run(self, is_hopeless: Callable[[RankExit], bool]) -> int:
        """Start, and return torchrun's exit code at the end.

        :param is_hopeless: whether a rank's failure is one that no start after it could cure: all are ended at once
        """
        for rank, lines in enumerate(self._lines):
            pipe = output_pipe(self.folder, rank)
            os.mkfifo(pipe, 0o600)
            # open for writing too: a rank that is started anew finds a reader, and we see no end between the two
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
        self._streams.register(self._process.stdout, selectors.EVENT_READ, self._own_lines)
        if self._is_ended:  # by a signal that came before there was anything to end
            self.end()
        seen: set[tuple[int, int]] = set()
        while self._process.poll() is None:
            self._read(_POLL_INTERVAL_S)
            for end in read_rank_exits(self.folder):
                is_new = (end.restart, end.rank) not in seen
                seen.add((end.restart, end.rank))
                if is_new and is_hopeless(end):
                    self._hopeless = end
                    self.end()
        self.end()
        while self._read(0):
            pass
        for lines in (*self._lines, self._own_lines):
            lines.close()
        return self._process.returncode

    def end(self) -> None:
        """Stop what still runs: SIGTERM, SIGKILL after `GRACE_S`. May be called twice, and from a signal handler."""
        self._is_ended = True
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)  # the ranks die with it: see `rank_process.die_with_parent`
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
        self._kill_marked()

    def ends(self) -> list[RankExit]:
        """What the ranks of the last start left word of, in the order in which they ended.

        Before them comes the end for which all were stopped, where torchrun had started them again by then.
        """
        found = latest_rank_exits(self.folder)
        if self._hopeless is None or self._hopeless in found:
            return found
        return [self._hopeless, *(end for end in found if end.rank != self._hopeless.rank)]

    def exit_codes(self) -> dict[int, int]:
        """Of the ranks that failed when torchrun gave up."""
        return read_exit_codes(self.folder)

    def tail(self, rank: int | None) -> str:
        """The last lines of a rank; of torchrun itself for None, or for a rank that is not here."""
        number = -1 if rank is None else rank - self.first_rank
        return (self._lines[number] if 0 <= number < len(self._lines) else self._own_lines).tail()

    def _read(self, wait_s: float) -> bool:
        """Take what there is; whether there was anything."""
        found = False
        for key, _ in self._streams.select(wait_s):
            data = os.read(key.fd, _READ_SIZE)
            if data:
                key.data.feed(data)
                found = True
            else:
                self._streams.unregister(key.fileobj)  # torchrun has closed it
        return found

    def _kill_marked(self) -> None:
        """The ranks and what they started, also those that went into sessions of their own."""
        end = time.monotonic() + GRACE_S
        while (left := self._marked()) and time.monotonic() < end:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.01)

    def _marked(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                is_ours = process.environ().get(RANKS_VARIABLE) == str(self.folder)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def _rendezvous_arguments(joining: RendezvousMember | None) -> list[str]:
    if joining is None:
        return ["--standalone", "--local-addr=localhost"]
    listen = f",listen_fd={joining.listener.fileno()}" if joining.listener else ""
    return [
        f"--nnodes={joining.gang.size}",
        "--rdzv-backend=hetero",
        f"--rdzv-endpoint={joining.meeting.address}:{joining.meeting.port}",
        f"--rdzv-id={joining.gang.name}",
        f"--rdzv-conf=rank={joining.gang.rank}{listen}",
        f"--local-addr={joining.address}",
    ]


class _LineBuffer:
    """Puts what arrives in pieces into lines, and keeps the last of them."""

    def __init__(self, name: str, log: Any) -> None:
        self._name = name
        self._log = log
        self._rest = b""
        self._kept: deque[bytes] = deque()
        self._size = 0

    def feed(self, data: bytes) -> None:
        *lines, self._rest = re.split(rb"[\r\n]+", self._rest + data)
        while len(self._rest) > MAX_LINE:
            lines.append(self._rest[:MAX_LINE])
            self._rest = self._rest[MAX_LINE:]
        for line in lines:
            self._say(line)

    def close(self) -> None:
        self._say(self._rest)
        self._rest = b""

    def tail(self) -> str:
        return b"\n".join(self._kept).decode(errors="replace")

    def _say(self, line: bytes) -> None:
        if not line.strip():
            return
        self._kept.append(line)
        self._size += len(line)
        while self._size > MAX_TAIL:
            self._size -= len(self._kept.popleft())
        self._log.info("[%s] %s", self._name, line.decode(errors="replace"))
