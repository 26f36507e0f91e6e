"""Publishes checkpoints in one background thread.

One save runs at a time, and the next one waits for it, so that memory holds at most two copies of a state.
"""

import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hetero_airflow.checkpoints.keys import check_file
from hetero_airflow.errors import CheckpointStoreUnavailable, InvalidCheckpoint, shorten

FILES = "files"
"""The folder of the task's files in a checkpoint."""

NICENESS = 10
"""The nice value of the thread that writes, so that the training keeps the cores."""

logger = logging.getLogger(__name__)


class BackgroundSaver:
    """Runs one save after the other. The next `wait` raises the error of a save, once."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint", initializer=_yield_cores)
        self._running: Future[None] | None = None

    def start(self, step: int, publish: Callable[[], object]) -> None:
        """Begin a save. Call `wait` first."""
        assert self._running is None
        self._running = self._threads.submit(_publish, step, publish)

    def wait(self) -> None:
        """Return when the current save, if any, is published.

        :raises CheckpointError: the save failed
        """
        running, self._running = self._running, None
        if running is not None:
            running.result()


def _yield_cores() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # on Linux this affects only the thread


def _publish(step: int, publish: Callable[[], object]) -> None:
    try:
        try:
            publish()
        except OSError as error:
            raise scratch_error(error) from error
    except Exception:
        logger.exception("The checkpoint of step %d is not saved; earlier ones are kept", step)
        raise


def scratch_error(error: OSError) -> CheckpointStoreUnavailable:
    """The error for a temporary folder that a checkpoint can't be written to."""
    return CheckpointStoreUnavailable(
        "to write a checkpoint to the temporary folder",
        found=f"{os.strerror(error.errno) if error.errno else type(error).__name__} at {error.filename or 'a file'}",
        remedy="Free space there, or set TMPDIR to a larger disk",
    )


def copy_files(files: Mapping[str, str | os.PathLike[str]], folder: Path) -> None:
    """Copy a task's files into a checkpoint's folder, under their names.

    :raises InvalidCheckpoint: a name outside of the folder, or a path that is not a plain file
    :raises CheckpointStoreUnavailable: the disk is full
    """
    for name, path in files.items():
        target, source = folder / check_file(f"{FILES}/{name}"), Path(path)
        if not source.is_file():
            raise InvalidCheckpoint(
                f"to save the file {shorten(str(source), 200)}",
                found="a folder" if source.is_dir() else "no plain file",
                remedy="Name each plain file; an archive is one file",
            )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        except OSError as error:
            raise scratch_error(error) from error
