"""Decides without the requests that a person has paused; they wait behind all others."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from hetero_airflow.model.plan import PAUSED, Account, Plan, Wait
from hetero_airflow.model.snapshot import Snapshot

_PAUSED_ACCOUNT = Account("paused", "a person has paused it, so no policy decides on it")


def decide_without_paused(decide: Callable[[Snapshot, datetime], Plan], snapshot: Snapshot, now: datetime) -> Plan:
    """The plan for all other requests; the paused ones wait, in the order of submission.

    The other members of a gang wait for a paused one, as they do for one that has not arrived.
    """
    paused = [pending for pending in snapshot.pending if pending.is_paused]
    if not paused:
        return decide(snapshot, now)
    active = tuple(pending for pending in snapshot.pending if not pending.is_paused)
    plan = decide(replace(snapshot, pending=active), now)
    first = 1 + sum(isinstance(decision, Wait) for decision in plan.decisions)
    waits = (Wait(pending.id, position, PAUSED, _PAUSED_ACCOUNT) for position, pending in enumerate(paused, first))
    return replace(plan, decisions=(*plan.decisions, *waits))
