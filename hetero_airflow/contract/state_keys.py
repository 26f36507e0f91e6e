"""The keys that this package uses in Airflow's task state store. All tries of a task share it; no clear wipes it."""

from __future__ import annotations

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from hetero_airflow.runtime.notice import Notice
from hetero_airflow.runtime.progress_file import Progress

LEASE = "hetero.lease"
"""The record of the last lease, for people and for retries."""

PREEMPT = "hetero.preempt"
"""A `LeaseNotice`, from the executor to the coordinator."""

PROGRESS = "hetero.progress"
"""A `LeaseProgress`, from the coordinator to the executor."""

FAILURES = "hetero.failures"
"""Why earlier runs failed. The next run is adjusted to it."""

CHECKPOINT = "hetero.checkpoint"
"""Where the checkpoints are (url, path, epoch), for people, and for a retry under another configuration."""


class LeaseNotice(BaseModel):
    """A notice to the run under a lease; a notice to an earlier lease is void."""

    model_config = ConfigDict(frozen=True)

    lease_id: str
    notice: Notice


class LeaseProgress(BaseModel):
    """The progress of the run under a lease."""

    model_config = ConfigDict(frozen=True, validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    lease_id: str
    progress: Progress
    reported_at: AwareDatetime = Field(alias="told_at")
