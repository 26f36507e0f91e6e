"""The port of a policy: who goes first, and where."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Snapshot


class Policy(Protocol):
    """Decides over one snapshot. Pure: the same snapshot and time give the same plan.

    A policy whose answer changes with time alone says in `Plan.until` when it may next; one that can't tell has
    an attribute `period_s`, see `period_of`.
    """

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request of the snapshot, in the order in which they were made.

        The placements of a plan fit the snapshot all together.
        """
        ...


def period_of(policy: Policy) -> float | None:
    """For how many seconds a decision stands while nothing changes but the time; None for ever."""
    period_s: float | None = getattr(policy, "period_s", None)
    return period_s
