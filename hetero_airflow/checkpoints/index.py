"""The index of a place: which checkpoints are whole. What it does not name does not exist for a reader."""

from __future__ import annotations

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat

INDEX = "index.json"
"""Key of the index within a place."""

MAX_INDEX_BYTES = 4 << 20
"""Some 10,000 entries."""

MAX_NEWEST_BYTES = 64 << 10


class CheckpointEntry(BaseModel):
    """One published checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int = Field(ge=0)
    """The last step that is done in it, counted from 0."""
    key: str
    """Its folder within the place; the manifest lies there as ``manifest.json``."""
    digest: str
    """SHA-256 of the manifest, in hexadecimal digits."""
    size_bytes: int = Field(ge=0)
    """Of all its files."""
    metrics: dict[str, FiniteFloat] = Field(default_factory=dict)
    published_at: AwareDatetime
    """Never before that of the entry before it, even if a clock was set back."""
    token: int
    epoch: int
    is_final: bool = False
    """Nothing comes after it: the task's work was done."""


class Index(BaseModel):
    """Replaced whole, by compare-and-swap: this is where the fencing token is checked.

    A run that begins puts its token in; whoever comes with a smaller one is refused from then on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: int
    """The greatest that has begun here."""
    epoch: int
    """The greatest that has begun here."""
    entries: tuple[CheckpointEntry, ...] = ()
    """In the order of their publishing. Of an earlier epoch they stay until the new one has published."""

    @property
    def current(self) -> tuple[CheckpointEntry, ...]:
        """The checkpoints of the present epoch."""
        return tuple(entry for entry in self.entries if entry.epoch == self.epoch)


class Newest(BaseModel):
    """What `place.newest_key` holds: the checkpoint of a task that was published last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    """The place: see `place.checkpoint_path`."""
    entry: CheckpointEntry
