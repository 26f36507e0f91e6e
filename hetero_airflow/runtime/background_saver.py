"""From a staged state to a published checkpoint, in one background thread.

One save runs at a time and the next one waits for it: two copies of a state in memory are enough.
"""

from __future__ import annotations

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
"""The folder of a checkpoint's files within it."""

NICENESS = 10
"""Of the thread that writes, so that the training keeps the cores."""

logger = logging.getLogger(__name__)


class BackgroundSaver:
    """Runs one save after the other. An error of a save is raised by the next `wait`, once."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint", initializer=_yield_cores)
        self._running: Future[None] | None = None

    def start(self, step: int, publish: Callable[[], object]) -> None:
        """Begin a save; call `wait` before."""
        assert self._running is None
        self._running = self._threads.submit(_logged, step, publish)

    def wait(self) -> None:
        """Returns when the save under way, if any, is published.

        :raises CheckpointError: it failed
        """
        running, self._running = self._running, None
        if running is not None:
            running.result()


def _yield_cores() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # on Linux it is the thread's own


def _logged(step: int, publish: Callable[[], object]) -> None:
    try:
        _mapped(publish)
    except Exception:
        logger.exception("The checkpoint of step %d is not saved; the ones before are kept", step)
        raise


def _mapped(publish: Callable[[], object]) -> None:
    try:
        publish()
    except OSError as error:
        raise scratch_error(error) from error


def scratch_error(error: OSError) -> CheckpointStoreUnavailable:
    """What to say when the local folder, in which a checkpoint is put together, can't take it."""
    return CheckpointStoreUnavailable(
        "to put a checkpoint together in the temporary folder",
        found=f"{os.strerror(error.errno) if error.errno else type(error).__name__} at {error.filename or 'a file'}",
        remedy="Free space there, or set TMPDIR to a larger disk",
    )


def copy_files(files: Mapping[str, str | os.PathLike[str]], folder: Path) -> None:
    """Copy a task's files into a checkpoint's folder, under their names.

    :raises InvalidCheckpoint: a name that would leave the folder, or no plain file under a path
    :raises CheckpointStoreUnavailable: they do not fit
    """
    for name, path in files.items():
        target, source = folder / check_file(f"{FILES}/{name}"), Path(path)
        if not source.is_file():
            raise InvalidCheckpoint(
                f"to save the file {shorten(str(source), 200)}",
                found="a folder" if source.is_dir() else "no plain file there",
                remedy="Name plain files, one by one; an archive counts as one",
            )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        except OSError as error:
            raise scratch_error(error) from error
