"""Compares the tasks that wait here with what Airflow and the store know about them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import datetime
from typing import Any, NamedTuple

from hetero_airflow.executor.leases.lease_use import LeaseUse
from hetero_airflow.executor.pending_task import SETTLING_TIME, PendingTask
from hetero_airflow.model.lease import Lease
from hetero_airflow.model.snapshot import PendingRequest, Snapshot


class DropTask(NamedTuple):
    """Airflow does not want the task any more: a user marked, cleared or deleted it."""

    key: Any


class FailTask(NamedTuple):
    """The task has waited too long."""

    key: Any
    text: str


class HandOverTask(NamedTuple):
    """The store has a lease for the task, and nobody has started it: another scheduler placed its whole gang, or the
    answer to a commit was lost."""

    key: Any
    lease: Lease


class EndLease(NamedTuple):
    """An earlier run of the task has a lease, or a scheduler that died got one for it. Once nothing can run under it,
    the task gets a new lease."""

    key: Any
    lease: Lease


class FollowRun(NamedTuple):
    """The task has begun under a lease of a scheduler that may be dead. It is kept here as a running one."""

    key: Any
    lease: Lease


class TakeOverRequest(NamedTuple):
    """The store has the request of the task: a scheduler that died submitted it, or the answer to a commit was lost."""

    key: Any
    pending: PendingRequest


class SubmitTask(NamedTuple):
    """The store does not know the task."""

    key: Any


Action = DropTask | FailTask | HandOverTask | EndLease | FollowRun | TakeOverRequest | SubmitTask


def reconcile(
    tasks: Mapping[Any, PendingTask],
    snapshot: Snapshot,
    *,
    queued: Set[str],
    leased: Set[str],
    uses: Mapping[str, LeaseUse],
    now: datetime,
) -> list[Action]:
    """One action for each task that needs one, in the order of the tasks.

    :param snapshot: the store, with the events that it does not have yet
    :param queued: ids of the settled tasks that are still QUEUED in Airflow; see `is_settled`
    :param leased: ids of the requests whose leases are kept here: such a task waits until the lease is free
    :param uses: lease id → its use, for the leases of other waiting tasks; a task waits if its lease is not in it
    """
    pending = {request.id: request for request in snapshot.pending}
    leases = {lease.request_id: lease for lease in snapshot.leases}
    actions: list[Action] = []
    for key, task in tasks.items():
        id_ = task.request_id
        if id_ in leases and uses.get(leases[id_].id) is LeaseUse.BEGUN:
            actions.append(FollowRun(key, leases[id_]))
        elif id_ not in queued and is_settled(task, now):
            actions.append(DropTask(key))
        elif (text := _timeout_text(task, now)) is not None:
            actions.append(FailTask(key, text))
        elif id_ in leased or is_delayed(task, now) or (task.request is not None and id_ in pending):
            continue
        elif id_ in leases:
            actions += _lease_actions(key, leases[id_], uses.get(leases[id_].id), snapshot)
        elif id_ in pending:
            actions.append(TakeOverRequest(key, pending[id_]))
        else:
            actions.append(SubmitTask(key))
    return actions


def _lease_actions(key: Any, lease: Lease, use: LeaseUse | None, snapshot: Snapshot) -> list[Action]:
    """What to do about a task whose request has a lease that is not kept here."""
    if use is LeaseUse.LEFT_OVER:
        return [EndLease(key, lease)]
    # without its whole gang, another scheduler may take the lease back
    is_ready = use is LeaseUse.UNUSED and _has_whole_gang(lease.request_id, snapshot)
    return [HandOverTask(key, lease)] if is_ready else []


def is_settled(task: PendingTask, now: datetime) -> bool:
    """Whether the task has waited so long that Airflow is asked whether it is still QUEUED."""
    return now - task.since >= SETTLING_TIME


def is_delayed(task: PendingTask, now: datetime) -> bool:
    """Whether the task is not to be placed now: its gang runs without it, or its last start has just failed."""
    return task.is_excluded or (task.not_before is not None and now < task.not_before)


def _timeout_text(task: PendingTask, now: datetime) -> str | None:
    limit_s = task.request.wait_timeout_s if task.request is not None and not task.is_excluded else None
    if limit_s is None or task.waited_s(now) <= max(limit_s, SETTLING_TIME.total_seconds()):
        return None
    return f"No device in time: asked to wait at most {limit_s:g} s for {task.request}; {task.logged_wait}"


def _has_whole_gang(request_id: str, snapshot: Snapshot) -> bool:
    """Whether all members of a request's gang hold a lease; True without a gang."""
    request = snapshot.holders.get(request_id)
    if request is None or not request.gang:
        return True
    return sum(holder.gang == request.gang for holder in snapshot.holders.values()) >= request.gang_size
