"""The waiting requests as rows. Pure."""

from collections.abc import Collection, Iterable
from datetime import datetime

from pydantic import BaseModel

from hetero_airflow.executor.explanation.device_text import request_lines
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.task_names import TaskNames
from hetero_airflow.scheduling.advice.wanted_workers import WantedType
from hetero_airflow.store.sql.queue import WaitingRequest
from hetero_airflow.web.page.task_rows import TaskLink


class WaitingRow(BaseModel):
    """A waiting request of a DAG that the reader may see."""

    task: TaskLink
    try_number: int
    position: int | None
    """Place in the whole queue, from 1; None before the first cycle."""
    submitted_at: datetime
    priority: str
    asked: list[str]
    """One line per alternative."""
    reason: str
    """Why it waits; empty before the first cycle."""


class QueueTable(BaseModel):
    """A page of the queue."""

    total: int
    """Waiting requests of the DAGs that the reader may see."""
    hidden: int
    """Waiting requests of other DAGs."""
    rows: list[WaitingRow]
    wanted: list[WantedType]
    """More workers that would let all waiting requests start now."""


def queue_table(
    snapshot: Snapshot, waiting: Iterable[WaitingRequest], wanted: Iterable[WantedType], readable: Collection[str]
) -> QueueTable:
    """A page of the queue, as the last cycle left it.

    :param waiting: the rows of the page
    """
    pending = {request.id: request for request in snapshot.pending}
    names = TaskNames.of(snapshot)
    total = sum(request.dag_id in readable for request in snapshot.pending)
    rows = [
        WaitingRow(
            task=TaskLink.model_validate(row),
            try_number=row.try_number,
            position=row.position,
            submitted_at=row.submitted_at,
            priority=request.request.priority if (request := pending.get(row.id)) else "",
            asked=request_lines(request.request) if request else [],
            reason=names.put_into(row.reason, readable),
        )
        for row in waiting
    ]
    return QueueTable(
        total=total, hidden=len(snapshot.pending) - total, rows=rows, wanted=[row for row in wanted if row.workers]
    )
