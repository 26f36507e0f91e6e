"""A temporary folder of this process, as for checkpoints on their way to or from the store.

It is under `TMPDIR`, if no other folder is given. A killed process can't clean up, and repeated kills would fill the
disk. So each process locks its folder, and the next process removes the folders that are not locked.
"""

import atexit
import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import time
from multiprocessing.util import Finalize
from pathlib import Path

PREFIX = "hetero-airflow-checkpoint-"
"""Start of the folder's name for checkpoints."""

LOCK = "lock~"
FRESH_S = 60.0
"""A folder that is younger than this may belong to a process that is about to lock it."""


class ScratchFolder:
    """A folder of this process, which is removed when the process ends.

    :param prefix: start of its name
    :param within: the folder in which it is made
    :param removes_abandoned: remove the folders of killed processes with the same prefix first
    """

    def __init__(self, prefix: str = PREFIX, within: Path | None = None, *, removes_abandoned: bool = True) -> None:
        if removes_abandoned:
            remove_abandoned(prefix, within)
        self.root = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
        lock = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.remove = Finalize(self, _remove, (self.root, lock), exitpriority=0)
        """Removes the folder now. In a forked process it does nothing."""
        # At their end, the processes of multiprocessing run finalizers alone, and Airflow's tasks what was registered
        # since they were forked: neither the hook of multiprocessing nor that of weakref.
        atexit.register(self.remove)

    def path(self) -> Path:
        """A new path in the folder; nothing exists there."""
        return self.root / secrets.token_hex(8)


def _remove(root: Path, lock: int) -> None:
    shutil.rmtree(root, ignore_errors=True)
    os.close(lock)


def remove_abandoned(prefix: str, within: Path | None = None) -> None:
    """Remove the folders of killed processes. It lists the folder around them, which may have many entries."""
    for root in (within or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # locked, owned by another user, or removed meanwhile
            if time.time() - root.stat(follow_symlinks=False).st_mtime > FRESH_S and not root.is_symlink():
                _remove_unlocked(root)


def _remove_unlocked(root: Path) -> None:
    lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(root, ignore_errors=True)
    finally:
        os.close(lock)
