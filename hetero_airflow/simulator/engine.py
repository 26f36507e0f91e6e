"""The simulated engine: takes note of what is to start and to end; the simulation makes it come true."""

from __future__ import annotations

from hetero_airflow.engines.engine import Liveness
from hetero_airflow.model.lease import Lease


class SimulatedEngine:
    """An `Engine` and a `Preemptor` without limits of its own."""

    def __init__(self) -> None:
        self.told: list[tuple[Lease, str]] = []
        """Leases whose holders have to end, and why, since they were last taken from here."""

    def dispatch(self, lease: Lease) -> None:
        """Nothing fails to start; what was dispatched, the cycle's result says."""

    def preempt(self, lease: Lease, cause: str) -> None:
        """Take note of it."""
        self.told.append((lease, cause))

    def is_ours(self, request_id: str) -> bool:
        """There is no other scheduler."""
        return True

    def reaches(self, worker_id: str) -> bool:
        """Every worker is in reach."""
        return True

    def open_slots(self) -> int | None:
        """As many as there are devices."""
        return None

    def liveness(self, lease: Lease) -> Liveness:
        """Leases don't expire here; whoever asks is told that nothing runs."""
        return Liveness.GONE
