"""``airflow hetero queue``: the requests that wait for devices, and the leases of those that have some."""

import shlex
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType

from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.live_snapshot import configured_policy, live_snapshot
from hetero_airflow.cli.output import age, cell, show, show_json, table
from hetero_airflow.executor.explanation.device_text import lease_lines, request_lines, task_name, try_text
from hetero_airflow.executor.explanation.live_snapshot import placed_requests
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Decision, Place, Plan, Wait
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.model.task_names import TaskNames

_LEASE_STYLES = {LeaseState.ACTIVE: "green", LeaseState.EXPIRED: "red"}


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A request that waits, with the decision of the next cycle on the current snapshot."""

    pending: PendingRequest
    decision: Decision | None
    """None if the policy did not decide on it."""

    @property
    def position(self) -> int | None:
        """Its place in the queue, from 1; None if the next cycle places or refuses it."""
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


@action
def queue(args: Namespace) -> None:
    """Print the waiting requests and the leases."""
    now = datetime.now(UTC)
    snapshot = live_snapshot()
    placed = placed_requests(database(), [lease.request_id for lease in snapshot.leases])
    decide, _ = configured_policy()
    entries = queue_entries(snapshot, decide(snapshot, now))
    if args.json:
        show_json(queue_json(entries, snapshot, placed))
    else:
        show(*queue_report(entries, snapshot, placed, now))


def queue_entries(snapshot: Snapshot, plan: Plan) -> list[QueueEntry]:
    """The waiting requests in the order of the queue; requests that the plan does not mention come last."""
    pending = {request.id: request for request in snapshot.pending}
    decided = [
        QueueEntry(pending.pop(decision.request_id), decision)
        for decision in plan.decisions
        if decision.request_id in pending
    ]
    return [*decided, *(QueueEntry(request, None) for request in pending.values())]


def queue_report(
    entries: Sequence[QueueEntry], snapshot: Snapshot, placed: Mapping[str, PendingRequest], now: datetime
) -> Iterator[RenderableType]:
    """The waiting requests and the live leases, each as a table. Pure.

    :param placed: the requests of the leases, by id
    """
    yield cell(f"Waiting: {len(entries)}", style="bold")
    if entries:
        names = TaskNames([*(entry.pending for entry in entries), *placed.values()])
        yield _waiting_table(entries, names, now)
        yield cell(f"More about the first: {_explain_command(entries[0].pending)}")
    yield cell("")
    yield cell(f"Leases: {len(snapshot.leases)}", style="bold")
    if snapshot.leases:
        yield _lease_table(snapshot, placed, now)


def queue_json(
    entries: Sequence[QueueEntry], snapshot: Snapshot, placed: Mapping[str, PendingRequest]
) -> dict[str, Any]:
    """The same as JSON values."""
    return {
        "waiting": [
            {
                **task_json(entry.pending),
                "position": entry.position,
                "request": entry.pending.request.model_dump(mode="json"),
                "weight": entry.pending.weight,
                "submitted_at": entry.pending.submitted_at.isoformat(),
                "reason": entry.reason,
            }
            for entry in entries
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
    """The names of a task instance, and the number of its try."""
    return {name: getattr(pending, name) for name in ("dag_id", "run_id", "task_id", "map_index", "try_number")}


def _waiting_table(entries: Sequence[QueueEntry], names: TaskNames, now: datetime) -> RenderableType:
    rows = [
        (
            cell("-" if entry.position is None else entry.position),
            cell(task_name(entry.pending), try_text(entry.pending)),
            cell(age(entry.pending.submitted_at, now), entry.pending.request.priority),
            cell(*request_lines(entry.pending.request), names.put_into(entry.reason)),
        )
        for entry in entries
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
    command = ["airflow", "hetero", "explain", pending.dag_id, pending.run_id, pending.task_id]
    command += ["--map-index", str(pending.map_index)] if pending.map_index >= 0 else []
    return shlex.join(command)


def _holder(lease: Lease, placed: Mapping[str, PendingRequest]) -> tuple[str, ...]:
    pending = placed.get(lease.request_id)
    return ("a task that is not known any more",) if pending is None else (task_name(pending), try_text(pending))
