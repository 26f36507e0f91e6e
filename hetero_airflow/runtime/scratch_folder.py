"""Where a checkpoint lies while it is on its way to the store or from it: a folder of this process's own.

It is under `TMPDIR`. A process that is killed can't clean up, and a task that is killed again and again would fill the
disk: so each folder is locked by its process, and the next one to come removes those that nobody locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
import weakref
from pathlib import Path

PREFIX = "hetero-airflow-checkpoint-"
LOCK = "lock~"
FRESH_S = 60.0
"""A folder this young may belong to a process that is about to lock it."""


class ScratchFolder:
    """A folder for this process's checkpoints, removed when it ends."""

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        _remove_abandoned(parent)
        self._root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = os.open(self._root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        weakref.finalize(self, _remove, self._root, lock, os.getpid())

    def path(self) -> Path:
        """Where nothing is yet."""
        return self._root / secrets.token_hex(8)


def _remove(root: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a fork has it too, and ends before
        shutil.rmtree(root, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for root in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # locked, another user's, or gone meanwhile
            if time.time() - root.stat(follow_symlinks=False).st_mtime > FRESH_S and not root.is_symlink():
                _remove_unlocked(root)


def _remove_unlocked(root: Path) -> None:
    lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(root, ignore_errors=True)
    finally:
        os.close(lock)
