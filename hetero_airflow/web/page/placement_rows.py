"""What the tab of a task instance shows."""

from datetime import datetime

from pydantic import BaseModel

from hetero_airflow.web.page.task_rows import LeaseRow, TaskLink


class RuledOut(BaseModel):
    """Workers that can't serve an alternative now, all for one kind of reason."""

    workers: int
    code: str
    asked: str
    found: str


class ConsideredPlacement(BaseModel):
    """A possible placement that was considered."""

    worker: str
    devices: list[str]
    score: float
    terms: dict[str, float]
    """Term → its part of the score."""
    is_chosen: bool


class AlternativeRow(BaseModel):
    """What was found for one alternative of the request."""

    asked: str
    evaluated: int
    """Workers that were evaluated."""
    ruled_out: list[RuledOut]
    candidates: list[ConsideredPlacement]
    """The best few, best first; empty for a reader who may not see the fleet."""


class TryRow(BaseModel):
    """One lease of the task: a try, or a part of one that was interrupted."""

    try_number: int
    worker: str
    devices: list[str]
    state: str
    granted_at: datetime
    ended_at: datetime | None
    outcome: str | None
    cause: str


class TransitionRow(BaseModel):
    """A step in the life of the task's runs."""

    at: datetime
    phase: str
    """Where the run was since then."""
    text: str
    """What was found out."""


class ProgressRow(BaseModel):
    """What the task last reported."""

    step: int | None
    """The last finished step, from 0."""
    total: int | None
    """How many steps there are; None if the task does not say."""
    ends_at: datetime | None
    """When the last one will be done at the present speed; None in the first minute, and without a total."""
    phase: str
    saved_step: int | None
    """The step of the newest published checkpoint, which a resume loads; None without one."""
    saved_at: datetime | None
    reported_at: datetime


class Placement(BaseModel):
    """All that the tab shows of a task instance, but for the forecast."""

    has_request: bool
    """False for a task that asks for no device, or whose history was pruned; then all else is empty."""
    state: str = ""
    """waiting, paused, placed, refused or ended"""
    asked: list[str] = []
    """One line per alternative, in order of preference."""
    priority: str = ""
    submitted_at: datetime | None = None
    position: int | None = None
    """Place in the queue, from 1."""
    reason: str = ""
    """Why it waits, does not run yet, or was refused; the cause of its end."""
    reason_code: str = ""
    ends_at: datetime | None = None
    """When the reason ends by itself."""
    decided_at: datetime | None = None
    policy: str = ""
    summary: str = ""
    """The policy's own sentence."""
    alternatives: list[AlternativeRow] = []
    ahead: list[TaskLink] = []
    """The first tasks ahead in the queue that the reader may see."""
    ahead_hidden: int = 0
    """Tasks ahead that are not in `ahead`."""
    holders: list[LeaseRow] = []
    """Who holds devices that it could use, the soonest end first; empty for a reader who may not see the fleet."""
    devices: list[str] = []
    """What it holds, one line per device."""
    worker: str = ""
    tries: list[TryRow] = []
    transitions: list[TransitionRow] = []
    """Oldest first."""
    progress: ProgressRow | None = None
    may_see_fleet: bool = True
