"""Where the checkpoints of one task instance are, and who may publish there."""

from __future__ import annotations

from hashlib import sha256
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

MAX_PART = 160
"""Characters of one part of a path; three of them, a file's name and the store's prefix fit into an S3 key."""


class CheckpointPlace(BaseModel):
    """What a task is told of its checkpoints; travels as JSON in the environment. Holds no secret.

    >>> place = CheckpointPlace(url="s3://models/a", path=checkpoint_path("train", "fit", "manual__2026-11-20", -1))
    >>> place.path
    'train/fit/manual__2026-11-20/-1'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    """``file:///folder`` or ``s3://bucket/prefix``."""
    path: str
    """Of the task instance within it: see `checkpoint_path`."""
    epoch: int | None = 0
    """Grows when the task is cleared: checkpoints of an earlier epoch are not resumed from. None: the index's own
    epoch, whichever that is, so that a task goes on from what it had before it was cleared."""
    token: int | None = None
    """Fencing token of the lease; None without one: then whoever begins last may publish."""
    endpoint: str | None = None
    """Of an S3-compatible store; None for AWS."""
    endpoints: tuple[str, ...] = ()
    """Endpoints that may be used beside AWS's own."""
    keep_last: int = Field(default=3, ge=1)
    keep_best: str | None = None
    """``min:loss`` or ``max:accuracy``: the best checkpoint by a metric is kept too."""
    keep_every: int | None = Field(default=None, ge=1)
    """The first checkpoint at or after each multiple of so many steps done is kept too."""
    is_host_bound: bool = False
    """Only this host is known to see the place, and the next run may be on another: what is kept here may be lost to
    it, so that the task does not count as one that has saved."""

    @property
    def feed(self) -> str | None:
        """See `newest_key`; None if the path is not of a task instance."""
        parts = self.path.split("/")
        return f"{parts[0]}/{parts[1]}/newest.json" if len(parts) == 4 else None


def checkpoint_path(dag_id: str, task_id: str, run_id: str, map_index: int) -> str:
    """The path of a task instance's checkpoints: each part quoted, so that none can leave its folder.

    A part over 160 characters is cut and ends with ``~`` and a digest of the whole, so that no two are mixed up.

    >>> checkpoint_path("etl", "a/../b", "scheduled__2026-01-01T00:00:00+00:00", 3)
    'etl/a%2F%2E%2E%2Fb/scheduled__2026-01-01T00%3A00%3A00%2B00%3A00/3'
    """
    return "/".join([*(_part(text) for text in (dag_id, task_id, run_id)), str(map_index)])


def newest_key(dag_id: str, task_id: str) -> str:
    """The key of the small object that says which checkpoint of a task was published last, in whatever run."""
    return f"{_part(dag_id)}/{_part(task_id)}/newest.json"


def _part(text: str) -> str:
    quoted = quote(text, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(quoted) <= MAX_PART:
        return quoted
    digest = sha256(text.encode()).hexdigest()[:32]
    return f"{quoted[: MAX_PART - len(digest) - 1]}~{digest}"
