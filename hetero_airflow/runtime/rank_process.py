"""One rank of a task with several processes: it runs the user's script, and writes a file that says how it ended.

torchrun starts it as ``python -m hetero_airflow.runtime.rank_process [-m] TARGET ARGUMENTS``. It has three purposes.
torchrun does not see a failure, and does not restart the rank, when the rank saves and stops at a notice. The rank that
failed first can be distinguished from ranks that failed because they lost it. No rank outlives torchrun. Each rank
writes its output to a named pipe of its own, so that lines of two ranks never mix.
"""

import ctypes
import faulthandler
import logging
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

from hetero_airflow.contract.notice import DUMP_SIGNAL, EXIT_STOPPED, Stopped, replace_file

RANKS_VARIABLE = "HETERO_AIRFLOW_RANKS"
"""Environment variable with the folder of the ranks' files and pipes; it also marks the children of ranks."""

RESULT_VARIABLE = "HETERO_AIRFLOW_RESULT"
"""Environment variable with the file to which rank 0 can write the task's result, as JSON."""

PARENT_VARIABLE = "HETERO_AIRFLOW_PARENT"
"""Environment variable with the pid of the process that a child must not outlive."""

MAX_TEXT = 16_384
"""How many characters of an exception's message are kept, from its end."""

MAX_CHAIN = 8

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_RUNPY = runpy.run_path.__code__.co_filename


class RankExit(BaseModel):
    """How a rank ended, written by the rank: normally, stopped, or with an exception. A killed rank writes none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    restart: int
    """How often torchrun has restarted the ranks."""
    at_s: float
    """The time of the end in seconds since 1970, to find the first rank."""
    stopped: str | None = None
    """The cause of the notice, if it stopped on request."""
    saved_step: int | None = None
    """Then: the step of the last published checkpoint."""
    raised: tuple[tuple[str, str], ...] = ()
    """(type, text) of the exception that ended it, and of that exception's causes."""
    lost: tuple[int, ...] = ()
    """Then: ranks that were gone before without a file; this rank may have failed because of them."""


def main(argv: Sequence[str]) -> int:
    """Run the target as the main program; return the exit code."""
    die_with_parent()
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    folder, rank = Path(os.environ[RANKS_VARIABLE]), int(os.environ["RANK"])
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    _redirect_output(output_pipe(folder, int(os.environ["LOCAL_RANK"])))
    if rank == 0:
        _show_log()
    _exit_path(folder, restart, rank).unlink(missing_ok=True)  # torchrun can start a rank twice if others are missing
    replace_file(_pid_path(folder, restart, rank), str(os.getpid()).encode())
    result, code = _run(list(argv), RankExit(rank=rank, restart=restart, at_s=0), folder)
    if code == 0:
        _leave_process_group()
    with suppress(OSError):  # torchrun needs the exit code even if the disk is full
        replace_file(_exit_path(folder, restart, rank), result.model_dump_json().encode())
    return code


def output_pipe(folder: Path, local_rank: int) -> Path:
    """The named pipe to which a rank writes."""
    return folder / f"output-{local_rank}"


def read_rank_exits(folder: Path) -> Iterator[RankExit]:
    """The ends of ranks that are known so far."""
    for path in folder.glob("end-*.json"):
        with suppress(FileNotFoundError):  # the rank was restarted meanwhile
            yield RankExit.model_validate_json(path.read_bytes())


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends. Linux only."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT_VARIABLE]):
        os.kill(os.getpid(), signal.SIGKILL)


def latest_rank_exits(folder: Path) -> list[RankExit]:
    """The ends of ranks since the last start, in order of time."""
    last = max((int(path.name.split("-")[1]) for path in folder.glob("pid-*")), default=0)
    return sorted((rank for rank in read_rank_exits(folder) if rank.restart == last), key=lambda rank: rank.at_s)


def _run(argv: list[str], base: RankExit, folder: Path) -> tuple[RankExit, int]:
    """Run the target like `python [-m] TARGET ARGUMENTS`; return its end and the exit code."""
    try:
        _run_target(argv)
    except Stopped as error:
        return _at_now(base, stopped=error.cause, saved_step=error.step), 0
    except SystemExit as error:
        if error.code == EXIT_STOPPED:
            return _at_now(base, stopped=f"exit code {EXIT_STOPPED}"), 0
        if error.code not in (None, 0):
            if not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
            return _failed(base, error, folder), error.code if isinstance(error.code, int) else 1
    except BaseException as error:  # noqa: BLE001  it is shown like Python shows it
        failed = _failed(base, error, folder)
        shown = error.with_traceback(_target_traceback(error.__traceback__))
        sys.excepthook(type(shown), shown, shown.__traceback__)
        return failed, 1
    return _at_now(base), 0


def _show_log() -> None:
    """Show what hetero_airflow logs, as in a Python task, unless the script configures logging itself."""
    handler = logging.StreamHandler()
    handler.addFilter(lambda _: not logging.root.handlers)
    logger = logging.getLogger("hetero_airflow")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _run_target(argv: list[str]) -> None:
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        sys.path[0] = str(Path(argv[0]).absolute().parent)
        runpy.run_path(argv[0], run_name="__main__")


def _leave_process_group() -> None:
    """End the threads of torch.distributed, if the target has left that to the end of the process.

    Otherwise Gloo's threads can abort a rank that has done all its work while Python ends (pytorch/pytorch#190489; seen
    with torch 2.13 in 13 of 32 runs on a busy machine). A rank that failed skips this: it could wait for the others.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    try:
        distributed.destroy_process_group()
    except Exception as error:  # noqa: BLE001  the rank has done its work
        print(f"The rank could not leave its process group at its end: {error!r}", file=sys.stderr)


def _target_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the target on, without this module and runpy."""
    while traceback is not None and traceback.tb_next and traceback.tb_frame.f_code.co_filename in (__file__, _RUNPY):
        traceback = traceback.tb_next
    return traceback


def _redirect_output(pipe: Path) -> None:
    output = os.open(pipe, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def _at_now(base: RankExit, **fields: object) -> RankExit:
    return base.model_copy(update={"at_s": time.time(), **fields})


def _failed(base: RankExit, error: BaseException, folder: Path) -> RankExit:
    chain = tuple((_type_name(cause), str(cause)[-MAX_TEXT:]) for cause in _chain(error))
    return _at_now(base, raised=chain, lost=tuple(_lost_ranks(folder, base)))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(MAX_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _lost_ranks(folder: Path, base: RankExit) -> Iterator[int]:
    """Ranks of the same start that are gone and wrote no file."""
    for path in folder.glob(f"pid-{base.restart}-*"):
        rank = int(path.name.split("-")[2])
        has_file = _exit_path(folder, base.restart, rank).exists
        if rank != base.rank and _is_gone(int(path.read_text())) and not has_file():
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
