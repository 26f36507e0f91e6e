"""What a compiler has written for a model, kept for later runs of the task beside its checkpoints.

torch's caches are code: a process that reads them runs it. So they are read only from the task's own place, and only if
the entry that names them is signed with the secret that the scheduler gives to the runs of this task alone. Whatever
else lies there is as if there was nothing.

Rejected: `torch.compiler.save_cache_artifacts`, which leaves out what g++ has made (two thirds of the time on a CPU).
"""

import functools
import hashlib
import hmac
import json
import logging
import os
import tarfile
from collections.abc import Collection
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from hetero_airflow.errors import CheckpointError
from hetero_airflow.runtime.checkpoint_session import CheckpointSession
from hetero_airflow.runtime.scratch_folder import ScratchFolder
from hetero_airflow.settings import TASK_SECRET_VARIABLE

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable with the folder in which torch's compiler, and Triton, keep what they write."""

MAX_BYTES = 1 << 30
"""Of a bundle, packed and unpacked."""

_PURPOSE = "hetero-airflow/compiled/1"
_PREFIX = "hetero-airflow-compiled-"
_FRESH_S = 3600.0
"""A bundle that is younger may be one that no index names yet."""

_FOLDER = "compiled.d"
"""Has a dot, so that no run's folder has this name."""


class Bundle(BaseModel):
    """Names a bundle in the task's place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str = Field(pattern="^[0-9a-f]{64}$")
    """SHA-256 of the packed files."""
    size_bytes: int = Field(gt=0, le=MAX_BYTES)
    signature: str = Field(max_length=64)


class CompiledCode:
    """The folder in which this process compiles, and the bundles of the task from which it is filled.

    A `TORCHINDUCTOR_CACHE_DIR` of the user is not changed, and then nothing is kept.
    """

    def __init__(self, session: CheckpointSession) -> None:
        self._store = session.store
        self._prefix = session.place.task_key(_FOLDER)
        self._secret = os.environ.get(TASK_SECRET_VARIABLE, "")
        scratch = _own_folder()
        self._folder = scratch.root / "inductor" if scratch else None

    @property
    def is_kept(self) -> bool:
        """Whether bundles can be read and written."""
        return bool(self._folder and self._prefix and self._secret)

    def count(self) -> int:
        """How many files there are."""
        return sum(len(files) for _, _, files in os.walk(self._folder)) if self._folder else 0

    def fill(self, name: str, bundle: Bundle) -> bool:
        """Unpack a bundle; False if there is none that a run of this task has made under this name."""
        if (
            self._folder is None
            or not self.is_kept
            or not hmac.compare_digest(bundle.signature, self._signature(name, bundle))
        ):
            return False
        scratch = ScratchFolder(_PREFIX)
        packed = scratch.path()
        try:
            self._store.fetch(self._key(bundle.digest), packed, at_most=bundle.size_bytes)
            if _sha256(packed) != bundle.digest:
                logger.warning("Compiled code of an earlier run is not used: its content is not what its run has kept.")
                return False
            with tarfile.open(packed) as archive:
                if sum(member.size for member in archive) > MAX_BYTES:
                    return False
                archive.extractall(self._folder, filter="data")
        except (CheckpointError, OSError, tarfile.TarError) as error:
            logger.warning("Compiled code of an earlier run can't be read: %s", error)
            return False
        finally:
            scratch.remove()
        return True

    def keep(self, name: str) -> Bundle | None:
        """Pack the folder and store it; None if it can't be kept."""
        if self._folder is None or not self.is_kept:
            return None
        scratch = ScratchFolder(_PREFIX)
        packed = scratch.path()
        try:
            with tarfile.open(packed, "w:gz", compresslevel=1) as archive:
                archive.add(self._folder, arcname=".", filter=_without_locks)
            bundle = Bundle(digest=_sha256(packed), size_bytes=packed.stat().st_size, signature="")
            self._store.put(self._key(bundle.digest), packed)
        except (CheckpointError, OSError, ValueError) as error:
            logger.warning("Compiled code is not kept for later runs: %s", error)
            return None
        finally:
            scratch.remove()
        return bundle.model_copy(update={"signature": self._signature(name, bundle)})

    def sweep(self, kept: Collection[str]) -> None:
        """Delete the bundles with other digests that are an hour old."""
        if self._prefix and kept:
            try:
                for _ in self._store.sweep(self._prefix, lambda name, age_s: name not in kept and age_s > _FRESH_S):
                    pass
            except CheckpointError as error:
                logger.warning("Compiled code of earlier runs is not deleted: %s", error)

    def _key(self, digest: str) -> str:
        return f"{self._prefix}/{digest}/code.tar.gz"

    def _signature(self, name: str, bundle: Bundle) -> str:
        words = json.dumps([_PURPOSE, self._prefix, name, bundle.digest, bundle.size_bytes])
        return hmac.new(self._secret.encode(), words.encode(), hashlib.sha256).hexdigest()


@functools.cache
def _own_folder() -> ScratchFolder | None:
    """The folder of this process for what is compiled; None if the user has set one."""
    set_to = Path(os.environ.get(CACHE_VARIABLE, ""))
    if set_to.name and not set_to.name.startswith("torchinductor_"):  # as torch sets it: others could make that folder
        return None
    scratch = ScratchFolder(_PREFIX)
    os.environ[CACHE_VARIABLE] = str(scratch.root / "inductor")
    (scratch.root / "inductor").mkdir()
    return scratch


def _without_locks(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Only what is needed again, alike for each process that has compiled it."""
    if member.name.endswith(".lock") or not (member.isfile() or member.isdir()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
