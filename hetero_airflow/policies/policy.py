"""The port of a policy: who goes first, and where."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Snapshot


class Policy(Protocol):
    """Decides over one snapshot. Pure: the same snapshot and time give the same plan."""

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        """A decision for each pending request of the snapshot, in the order in which they were made.

        The placements of a plan fit the snapshot all together.
        """
        ...
