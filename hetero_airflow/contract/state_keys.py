"""What we keep in Airflow's task state store, and under which keys. All tries of a task share it; no clear wipes it."""

from __future__ import annotations

from pydantic import AwareDatetime, BaseModel, ConfigDict

from hetero_airflow.runtime.notice import Notice
from hetero_airflow.runtime.progress_file import Progress

LEASE = "hetero.lease"
"""The record of the last lease, for people and for retries."""

PREEMPT = "hetero.preempt"
"""A `LeaseNotice`, from the executor to the coordinator."""

PROGRESS = "hetero.progress"
"""A `LeaseProgress`, from the coordinator to the executor."""

FAILURES = "hetero.failures"
"""Why earlier runs failed: what the next one does differently depends on it."""

CHECKPOINT = "hetero.checkpoint"
"""Where the checkpoints are (url, path, epoch), for people, and for a retry under another configuration."""


class LeaseNotice(BaseModel):
    """A notice to whoever runs under a lease; that of an earlier lease is void."""

    model_config = ConfigDict(frozen=True)

    lease_id: str
    notice: Notice


class LeaseProgress(BaseModel):
    """How far the task has come under a lease."""

    model_config = ConfigDict(frozen=True)

    lease_id: str
    progress: Progress
    told_at: AwareDatetime
