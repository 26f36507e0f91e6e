"""The port of a policy: which request goes first, and where it is placed."""

from datetime import datetime
from typing import Protocol

from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Snapshot


class Policy(Protocol):
    """Decides over one snapshot. Pure: the same snapshot and time give the same plan.

    Where the decision changes with time alone, `Plan.until` says when. A policy that does not know when has an
    attribute `period_s`, see `period_of`.
    """

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request of the snapshot, in the order in which they are made.

        All placements of a plan together fit the snapshot.
        """


def period_of(policy: Policy) -> float | None:
    """For how many seconds a decision is valid while nothing but the time changes; None: for ever."""
    period_s: float | None = getattr(policy, "period_s", None)
    return period_s
