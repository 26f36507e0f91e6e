"""``airflow hetero queue``: who waits for devices, and who holds them. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import RenderableType

from hetero_airflow.cli.device_text import lease_lines, request_lines, task_name, try_text
from hetero_airflow.cli.output import age, cell, table
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Decision, Place, Plan, Wait
from hetero_airflow.model.snapshot import PendingRequest, Snapshot

_LEASE_STYLES = {LeaseState.ACTIVE: "green", LeaseState.EXPIRED: "red"}


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A request that waits, with what the next cycle decides of it as things stand."""

    pending: PendingRequest
    decision: Decision | None
    """None if the policy passed it over."""

    @property
    def position(self) -> int | None:
        """In the queue, from 1; None for one that is about to leave it."""
        return self.decision.position if isinstance(self.decision, Wait) else None

    @property
    def reason(self) -> str:
        """Why it has no device yet."""
        if self.decision is None:
            return "not decided"
        if isinstance(self.decision, Place):
            return f"fits on {self.decision.worker_id} now: the scheduler's next cycle places it"
        if isinstance(self.decision, Wait):
            return str(self.decision.reason)
        return f"can never run: {self.decision.nearest}"


def queue_entries(snapshot: Snapshot, plan: Plan) -> list[QueueEntry]:
    """The waiting requests in the order of the queue; those that the plan leaves out come last."""
    pending = {each.id: each for each in snapshot.pending}
    queue = [QueueEntry(pending.pop(one.request_id), one) for one in plan.decisions if one.request_id in pending]
    return [*queue, *(QueueEntry(each, None) for each in pending.values())]


def queue_report(
    queue: Sequence[QueueEntry], snapshot: Snapshot, placed: Mapping[str, PendingRequest], now: datetime
) -> Iterator[RenderableType]:
    """The waiting requests and the live leases, each as a table; `placed` are the requests of leases by id."""
    yield cell(f"Waiting: {len(queue)}", style="bold")
    if queue:
        yield _waiting_table(queue, now)
        yield cell(f"More about the first: {_explain_command(queue[0].pending)}")
    yield cell("")
    yield cell(f"Leases: {len(snapshot.leases)}", style="bold")
    if snapshot.leases:
        yield _lease_table(snapshot, placed, now)


def queue_json(queue: Sequence[QueueEntry], snapshot: Snapshot, placed: Mapping[str, PendingRequest]) -> dict[str, Any]:
    """The same as JSON values."""
    return {
        "waiting": [
            {
                **task_json(each.pending),
                "position": each.position,
                "request": each.pending.request.model_dump(mode="json"),
                "weight": each.pending.weight,
                "submitted_at": each.pending.submitted_at.isoformat(),
                "reason": each.reason,
            }
            for each in queue
        ],
        "leases": [
            {
                **lease.model_dump(mode="json"),
                "task": task_json(placed[lease.request_id]) if lease.request_id in placed else None,
            }
            for lease in snapshot.leases
        ],
    }


def task_json(pending: PendingRequest) -> dict[str, Any]:
    """Which try of which task instance."""
    return {name: getattr(pending, name) for name in ("dag_id", "run_id", "task_id", "map_index", "try_number")}


def _waiting_table(queue: Sequence[QueueEntry], now: datetime) -> RenderableType:
    rows = [
        (
            cell("-" if each.position is None else each.position),
            cell(task_name(each.pending), try_text(each.pending)),
            cell(age(each.pending.submitted_at, now), each.pending.request.priority),
            cell(*request_lines(each.pending.request), each.reason),
        )
        for each in queue
    ]
    return table(("#", "TASK", "WAITS", "ASKS FOR, AND WHY IT WAITS"), rows, whole=1)


def _lease_table(snapshot: Snapshot, placed: Mapping[str, PendingRequest], now: datetime) -> RenderableType:
    workers = {worker.id: worker for worker in snapshot.workers}
    rows = [
        (
            cell(
                *_holder(lease, placed),
                *(f"  {line}" for line in lease_lines(lease, workers.get(lease.worker_id))),
                f"  on {lease.worker_id}",
            ),
            cell(lease.state, style=_LEASE_STYLES.get(lease.state, "")),
            cell(f"{age(lease.granted_at, now)} ago"),
        )
        for lease in snapshot.leases
    ]
    return table(("TASK, AND WHAT IT HOLDS", "STATE", "GRANTED"), rows, whole=0)


def _explain_command(pending: PendingRequest) -> str:
    words = ["airflow", "hetero", "explain", pending.dag_id, pending.run_id, pending.task_id]
    words += ["--map-index", str(pending.map_index)] if pending.map_index >= 0 else []
    return shlex.join(words)


def _holder(lease: Lease, placed: Mapping[str, PendingRequest]) -> tuple[str, ...]:
    pending = placed.get(lease.request_id)
    return (f"request {lease.request_id}",) if pending is None else (task_name(pending), try_text(pending))
