"""The index of a place: its complete checkpoints. Readers see only the checkpoints in the index."""

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
    """The last completed step, counted from 0."""
    key: str
    """Its folder within the place; the manifest is in it as ``manifest.json``."""
    digest: str
    """SHA-256 of the manifest, in hexadecimal digits."""
    size_bytes: int = Field(ge=0)
    """The size of all its files."""
    metrics: dict[str, FiniteFloat] = Field(default_factory=dict)
    published_at: AwareDatetime
    """Never earlier than the entry before it, even if a clock was set back."""
    token: int
    epoch: int
    is_final: bool = False
    """The task's work was done: no entry follows."""


class Index(BaseModel):
    """All checkpoints of a place. It is replaced by compare-and-swap, and that write checks the fencing token.

    A run puts its token in when it begins. From then on, writers with a smaller token are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: int
    """The newest run's fencing token."""
    epoch: int
    """The newest run's epoch."""
    entries: tuple[CheckpointEntry, ...] = ()
    """In the order of publication. Those of an earlier epoch stay until the new epoch publishes."""

    @property
    def current(self) -> tuple[CheckpointEntry, ...]:
        """The checkpoints of the current epoch."""
        return tuple(entry for entry in self.entries if entry.epoch == self.epoch)


class Newest(BaseModel):
    """The object at `place.newest_key`: the checkpoint that a task published last."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    """The place: see `place.checkpoint_path`."""
    entry: CheckpointEntry
