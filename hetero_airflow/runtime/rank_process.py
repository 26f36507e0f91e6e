"""One of several processes of a task: runs the user's script, and leaves word of how it ended.

torchrun starts it, as ``python -m hetero_airflow.runtime.rank_process [-m] TARGET ARGUMENTS``. It is here so that a
rank that saved and stopped at a notice is no failure to torchrun, which would start it again; so that the rank that
failed first can be told from those that lost it; and so that no rank outlives torchrun. What it writes goes to its
own named pipe, and lines of two ranks never mix.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pydantic import BaseModel, ConfigDict

from hetero_airflow.runtime.notice import DUMP_SIGNAL, EXIT_STOPPED, Stopped, replace_file

RANKS_VARIABLE = "HETERO_AIRFLOW_RANKS"
"""Environment variable that names the folder of these words and pipes; it also marks the ranks' own children."""

RESULT_VARIABLE = "HETERO_AIRFLOW_RESULT"
"""Environment variable that names the file to which rank 0 may write the task's result, as JSON."""

PARENT_VARIABLE = "HETERO_AIRFLOW_PARENT"
"""Environment variable with the pid of the process that a child shall not outlive."""

MAX_TEXT = 16_384
"""Characters of one exception's message that are kept, from its end."""

MAX_CHAIN = 8

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_RUNPY = runpy.run_path.__code__.co_filename


class RankExit(BaseModel):
    """How a rank ended, in its own words: well, stopped, or raising. One that was killed leaves none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    restart: int
    """How often torchrun had started the ranks again."""
    at_s: float
    """Seconds since 1970: which rank was first."""
    stopped: str | None = None
    """Why it stopped on request, if it did."""
    saved_step: int | None = None
    """Then: that of the checkpoint that is kept."""
    raised: tuple[tuple[str, str], ...] = ()
    """(type, text) of the exception that ended it, and of those that this one came from."""
    lost: tuple[int, ...] = ()
    """Then: ranks that had gone before without a word, so that it may have failed for lack of them."""


def main(argv: Sequence[str]) -> int:
    """Run the target as the main program; the exit code."""
    die_with_parent()
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    folder, rank = Path(os.environ[RANKS_VARIABLE]), int(os.environ["RANK"])
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    _redirect_output(output_pipe(folder, int(os.environ["LOCAL_RANK"])))
    _exit_path(folder, restart, rank).unlink(missing_ok=True)  # started again for lack of others, it counts as the same
    replace_file(_pid_path(folder, restart, rank), str(os.getpid()).encode())
    end, code = _run(list(argv), RankExit(rank=rank, restart=restart, at_s=0), folder)
    with suppress(OSError):  # a full disk must not hide how it ended from torchrun, too
        replace_file(_exit_path(folder, restart, rank), end.model_dump_json().encode())
    return code


def output_pipe(folder: Path, local_rank: int) -> Path:
    """The named pipe to which a rank writes."""
    return folder / f"output-{local_rank}"


def read_rank_exits(folder: Path) -> Iterator[RankExit]:
    """What the ranks have left word of so far."""
    for path in folder.glob("end-*.json"):
        with suppress(FileNotFoundError):  # the rank was started again meanwhile
            yield RankExit.model_validate_json(path.read_bytes())


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone. Linux only."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT_VARIABLE]):
        os.kill(os.getpid(), signal.SIGKILL)


def latest_rank_exits(folder: Path) -> list[RankExit]:
    """Those of the last start, in the order in which they ended."""
    last = max((int(path.name.split("-")[1]) for path in folder.glob("pid-*")), default=0)
    return sorted((end for end in read_rank_exits(folder) if end.restart == last), key=lambda end: end.at_s)


def _run(argv: list[str], end: RankExit, folder: Path) -> tuple[RankExit, int]:
    """Do as `python [-m] TARGET ARGUMENTS` would."""
    try:
        _run_target(argv)
    except Stopped as error:
        return _at_now(end, stopped=error.cause, saved_step=error.step), 0
    except SystemExit as error:
        if error.code == EXIT_STOPPED:
            return _at_now(end, stopped=f"exit code {EXIT_STOPPED}"), 0
        if error.code not in (None, 0):
            if not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
            return _failed(end, error, folder), error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001  it is shown as Python would show it
        failed = _failed(end, error, folder)
        shown = error.with_traceback(_target_traceback(error.__traceback__))
        sys.excepthook(type(shown), shown, shown.__traceback__)
        return failed, 1
    return _at_now(end), 0


def _run_target(argv: list[str]) -> None:
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        sys.path[0] = str(Path(argv[0]).absolute().parent)
        runpy.run_path(argv[0], run_name="__main__")


def _target_traceback(found: TracebackType | None) -> TracebackType | None:
    """A traceback without what ran the target."""
    while found is not None and found.tb_next and found.tb_frame.f_code.co_filename in (__file__, _RUNPY):
        found = found.tb_next
    return found


def _redirect_output(pipe: Path) -> None:
    output = os.open(pipe, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def _at_now(end: RankExit, **fields: object) -> RankExit:
    return end.model_copy(update={"at_s": time.time(), **fields})


def _failed(end: RankExit, error: BaseException, folder: Path) -> RankExit:
    chain = tuple((_type_name(one), str(one)[-MAX_TEXT:]) for one in _chain(error))
    return _at_now(end, raised=chain, lost=tuple(_lost_ranks(folder, end)))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(MAX_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _lost_ranks(folder: Path, end: RankExit) -> Iterator[int]:
    """Ranks of the same start that are no more, and left no word."""
    for path in folder.glob(f"pid-{end.restart}-*"):
        rank = int(path.name.split("-")[2])
        if rank != end.rank and _is_gone(int(path.read_text())) and not _exit_path(folder, end.restart, rank).exists():
            yield rank


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def _pid_path(folder: Path, restart: int, rank: int) -> Path:
    return folder / f"pid-{restart}-{rank}"


def _exit_path(folder: Path, restart: int, rank: int) -> Path:
    return folder / f"end-{restart}-{rank}.json"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
