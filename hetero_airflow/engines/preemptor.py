"""The port of preemption: telling a task to save and end. An engine that can't has none."""

from __future__ import annotations

from typing import Protocol

from hetero_airflow.model.lease import Lease


class Preemptor(Protocol):
    """Carries out what a plan takes back."""

    def preempt(self, lease: Lease, cause: str) -> None:
        """Tell the holder of a lease to save and end; called once a lease, and does not wait for it.

        When the task has ended, whoever drives the cycle releases the lease and submits the request
        anew, with what it was served.
        """
        ...
