"""Why one task waits, or why it got its devices. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from heapq import nsmallest
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from hetero_airflow.contract.progress import Progress
from hetero_airflow.executor.explanation.device_text import lease_lines, request_lines
from hetero_airflow.executor.explanation.transition_text import transition_text
from hetero_airflow.model.device import Device, device_tokens, matches_model
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import PAUSED, Account, AlternativeAccount, CandidateAccount
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.task_names import TaskNames
from hetero_airflow.store.codec import ACCOUNT
from hetero_airflow.store.lease_history import PastLease
from hetero_airflow.store.sql.queue import WaitingRequest
from hetero_airflow.store.store import RequestHistory
from hetero_airflow.web.page.task_rows import LeaseRow, TaskLink, lease_row, leased_device, likely_end

MAX_AHEAD = 10
"""Tasks ahead in the queue that are named; the others are counted."""

MAX_HOLDERS = 10


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

    model_config = ConfigDict(from_attributes=True)

    try_number: int
    worker: str = Field(validation_alias="worker_id")
    devices: list[str] = Field(validation_alias="device_ids")
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
    spent_on: str
    """What the steps' time was spent on, such as ``data 31 %, compute 66 %, save 3 %``; empty if that is not known."""
    has_profile: bool
    """Whether it has kept a trace of some steps."""


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
    then: str = ""
    """What happens at that time."""
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


def placement(
    history: RequestHistory | None,
    tries: Iterable[PastLease],
    progress: Progress | None,
    snapshot: Snapshot,
    queue: Iterable[WaitingRequest],
    readable: Collection[str],
    now: datetime,
    may_see_fleet: bool,
) -> Placement:
    """The tab of a task instance.

    :param history: of its newest request; None if it has none
    :param tries: the leases of all its tries
    :param queue: the first `MAX_AHEAD` waiting requests that the reader may see
    :param readable: the DAGs that the reader may see
    """
    if history is None:
        return Placement(has_request=False, may_see_fleet=may_see_fleet)
    names = TaskNames((*snapshot.pending, *snapshot.holders.values(), history.pending))
    newest = history.decisions[0] if history.decisions else None
    account = ACCOUNT.validate_python(newest["account"]) if newest else None
    live = history.leases[-1] if history.leases and history.state == "placed" else None
    shown = Placement(
        has_request=True,
        state=_state(history, newest),
        asked=request_lines(history.pending.request),
        priority=history.pending.request.priority,
        submitted_at=history.pending.submitted_at,
        decided_at=datetime.fromisoformat(newest["decided_at"]) if newest else None,
        policy=account.policy if account else "",
        summary=names.put_into(account.summary, readable) if account else "",
        alternatives=list(_alternatives(account, live, names, readable, may_see_fleet)) if account else [],
        tries=[TryRow.model_validate(lease) for lease in tries],
        transitions=[
            TransitionRow(at=step.at, phase=step.phase, text=names.put_into(transition_text(step), readable))
            for step in history.transitions
        ],
        progress=_progress_row(progress, snapshot.estimates.reported_ends.get(live.id) if live else None),
        may_see_fleet=may_see_fleet,
        **_reason(history, newest, names, readable),
    )
    if live is not None:
        workers = {worker.id: worker for worker in snapshot.workers}
        shown = shown.model_copy(
            update={"worker": live.worker_id, "devices": lease_lines(live, workers.get(live.worker_id))}
        )
    if shown.state == "waiting":
        shown = shown.model_copy(update=_ahead(shown.position, queue))
        if may_see_fleet:
            shown = shown.model_copy(update={"holders": _holders(history.pending, snapshot, readable, now)})
    return shown


def _state(history: RequestHistory, newest: Mapping[str, Any] | None) -> str:
    if history.state == "waiting" and history.pending.is_paused:
        return "paused"
    return "refused" if history.is_refused else history.state


def _reason(
    history: RequestHistory, newest: Mapping[str, Any] | None, names: TaskNames, readable: Collection[str]
) -> dict[str, Any]:
    """The fields about the reason."""
    if history.state == "ended":
        text = history.decisions[0]["nearest"] if history.is_refused else history.cause
        return {"reason": names.put_into(text or "", readable)}
    if history.pending.is_paused:
        return {"reason": PAUSED.found, "reason_code": PAUSED.code.value}
    reason = newest["reason"] if newest else None
    position = newest["position"] if newest and newest["outcome"] == "wait" else None
    if reason is None:
        return {"position": position}
    text = names.put_into(f"asked {reason['asked']}, found {reason['found']}", readable)
    until = reason.get("until")
    ends_at = datetime.fromisoformat(until) if until else None
    then = reason.get("then") or ""
    return {"position": position, "reason": text, "reason_code": reason["code"], "ends_at": ends_at, "then": then}


def _alternatives(
    account: Account, live: Lease | None, names: TaskNames, readable: Collection[str], may_see_fleet: bool
) -> Iterator[AlternativeRow]:
    leased_ids = {claim.device_id for claim in live.claims} if live else set()
    for number, alternative in enumerate(account.alternatives):
        lease = live if live is not None and live.alternative == number else None
        yield AlternativeRow(
            asked=alternative.asked,
            evaluated=alternative.evaluated,
            ruled_out=[
                RuledOut(
                    workers=workers,
                    code=reason.code.value,
                    asked=names.put_into(reason.asked, readable),
                    found=names.put_into(reason.found, readable),
                )
                for workers, reason in alternative.filtered
            ],
            candidates=[_candidate(candidate, lease, leased_ids) for candidate in _shown(alternative, account, lease)]
            if may_see_fleet
            else [],
        )


def _shown(alternative: AlternativeAccount, account: Account, lease: Lease | None) -> list[CandidateAccount]:
    """The best candidates, and the chosen one where equal requests share an account that does not list it."""
    chosen = account.chosen if lease is not None else None
    extra = [chosen] if chosen is not None and chosen not in alternative.candidates else []
    return [*alternative.candidates, *extra]


def _candidate(candidate: CandidateAccount, lease: Lease | None, leased_ids: set[str]) -> ConsideredPlacement:
    is_chosen = (
        lease is not None and candidate.worker_id == lease.worker_id and leased_ids.issuperset(candidate.device_ids)
    )
    return ConsideredPlacement(
        worker=candidate.worker_id,
        devices=list(candidate.device_ids),
        score=candidate.score,
        terms=dict(candidate.terms),
        is_chosen=is_chosen,
    )


def _progress_row(progress: Progress | None, ends_at: datetime | None) -> ProgressRow | None:
    if progress is None:
        return None
    return ProgressRow(
        step=progress.step,
        total=progress.total,
        ends_at=ends_at,
        phase=progress.phase,
        saved_step=progress.saved_step,
        saved_at=progress.saved_at,
        reported_at=progress.at,
        spent_on="" if progress.shares is None else str(progress.shares),
        has_profile=progress.profile is not None,
    )


def _ahead(position: int | None, queue: Iterable[WaitingRequest]) -> dict[str, Any]:
    """Who is ahead in the order of the last cycle; nobody before the first cycle that saw the request."""
    if position is None:
        return {}
    ahead = [TaskLink.model_validate(row) for row in queue if row.position is not None and row.position < position]
    return {"ahead": ahead, "ahead_hidden": max(0, position - 1 - len(ahead))}


def _holders(pending: PendingRequest, snapshot: Snapshot, readable: Collection[str], now: datetime) -> list[LeaseRow]:
    """The leases on devices of a kind that the request asks for; those that probably end first come first."""
    workers = {worker.id: worker for worker in snapshot.workers}
    is_asked: dict[tuple[str, ...], bool] = {}
    ends: list[tuple[bool, datetime, str, Lease]] = []
    for lease in snapshot.leases:
        device = leased_device(lease, workers.get(lease.worker_id))
        if device is None:
            continue
        look = (device.vendor, device.kind, device.model, device.partition or "")
        if look not in is_asked:
            is_asked[look] = any(_is_asked(device, option) for option in pending.request.alternatives)
        if is_asked[look]:
            end = likely_end(lease, snapshot.holders.get(lease.request_id), device, snapshot.estimates, now)
            ends.append((end is None, end or lease.granted_at, lease.id, lease))
    soonest = nsmallest(MAX_HOLDERS, ends)
    return [lease_row(lease, snapshot.holders, workers, snapshot.estimates, readable, now) for *_, lease in soonest]


def _is_asked(device: Device, alternative: Alternative) -> bool:
    """Whether a device is of the vendor, kind, model and partition of an alternative."""
    pairs = ((alternative.vendor, device.vendor), (alternative.kind, device.kind))
    return (
        all(wanted in (None, actual) for wanted, actual in pairs)
        and alternative.partition == device.partition
        and (alternative.model is None or matches_model(alternative.model, device_tokens(device)))
    )
