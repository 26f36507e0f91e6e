"""The place of one task instance's checkpoints, and who may publish there."""

from hashlib import sha256
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

MAX_PART = 160
"""Characters of one part of a path: three parts, a file's name and the store's prefix fit into an S3 key."""


class CheckpointPlace(BaseModel):
    """The checkpoint settings of a task. They travel as JSON in its environment and hold no secret.

    >>> place = CheckpointPlace(url="s3://models/a", path=checkpoint_path("train", "fit", "manual__2026-11-20", -1))
    >>> place.path
    'train/fit/manual__2026-11-20/-1'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    """``file:///folder``, ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``."""
    path: str
    """The task instance's path below the URL: see `checkpoint_path`."""
    epoch: int | None = 0
    """Grows when the task is cleared; a run does not resume from an earlier epoch. None: the index's epoch, so that a
    cleared task continues from what it had."""
    token: int | None = None
    """Fencing token of the lease. None: there is no lease, and the run that begins last may publish."""
    endpoint: str | None = None
    """The URL of the store; None for the provider's own."""
    endpoints: tuple[str, ...] = ()
    """Endpoints that are allowed in addition to the provider's own."""
    keep_last: int = Field(default=3, ge=1)
    keep_best: str | None = None
    """``min:loss`` or ``max:accuracy``: also keep the best checkpoint by a metric."""
    keep_every: int | None = Field(default=None, ge=1)
    """Also keep the first checkpoint at or after each multiple of this number of completed steps."""
    is_host_bound: bool = False
    """Perhaps only this host sees the place, and the next run may be on another host. A save here may be lost, so the
    task does not count as saved."""

    @property
    def newest_key(self) -> str | None:
        """See the function `newest_key`; None if the path is not of a task instance."""
        return self.task_key("newest.json")

    def task_key(self, name: str) -> str | None:
        """The key of an object that all runs of the task share; None if the path is not of a task instance."""
        parts = self.path.split("/")
        return f"{parts[0]}/{parts[1]}/{name}" if len(parts) == 4 else None


def checkpoint_path(dag_id: str, task_id: str, run_id: str, map_index: int) -> str:
    """The path of a task instance's checkpoints. Each part is quoted, so that none can leave its folder.

    A part over 160 characters is cut and ends with ``~`` and a digest of the whole, so that two never collide.

    >>> checkpoint_path("etl", "a/../b", "scheduled__2026-01-01T00:00:00+00:00", 3)
    'etl/a%2F%2E%2E%2Fb/scheduled__2026-01-01T00%3A00%3A00%2B00%3A00/3'
    """
    return "/".join([*(_part(text) for text in (dag_id, task_id, run_id)), str(map_index)])


def newest_key(dag_id: str, task_id: str) -> str:
    """The key of the small object that names the checkpoint that a task published last, in any of its runs."""
    return f"{_part(dag_id)}/{_part(task_id)}/newest.json"


def _part(text: str) -> str:
    quoted = quote(text, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(quoted) <= MAX_PART:
        return quoted
    digest = sha256(text.encode()).hexdigest()[:32]
    return f"{quoted[: MAX_PART - len(digest) - 1]}~{digest}"
