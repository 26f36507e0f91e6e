"""The keys that this package uses in Airflow's task state store. All tries of a task share it; no clear wipes it."""

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from hetero_airflow.contract.notice import Notice
from hetero_airflow.contract.progress import Progress
from hetero_airflow.model.run import TimeShares

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


class ReportedSpeed(BaseModel):
    """How fast a run is since it started, without its start, restores and stalls."""

    model_config = ConfigDict(frozen=True)

    steps_per_s: float = Field(gt=0, allow_inf_nan=False)
    deviation: float = Field(ge=0, allow_inf_nan=False)
    """The standard deviation of its error, as a part of it: 0.05 is 5 %."""
    steps: int = Field(ge=0)
    """Steps that were counted."""
    seconds: float = Field(ge=0, allow_inf_nan=False)
    """How long they took."""
    shares: TimeShares | None = None
    """What the time was spent on; None if the task does not say."""


class LeaseProgress(BaseModel):
    """The progress of the run under a lease."""

    model_config = ConfigDict(frozen=True)

    lease_id: str
    progress: Progress
    reported_at: AwareDatetime
    speed: ReportedSpeed | None = None
    """None in the first minute, and for a task that reports no steps."""
