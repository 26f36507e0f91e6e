"""Whether a request fits anywhere at all, asked of one decision's fleet for many requests.

Cheaper than a ranking, which scores each place: nothing is scored, equal questions are asked once, and accelerators
are looked for only on workers that have some of one free.
"""

from __future__ import annotations

from functools import cached_property

from hetero_airflow.matching.future_capacity import FutureCapacity
from hetero_airflow.matching.matcher import OccupancyState
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.request import Alternative, DeviceRequest


class FitCache:
    """The places of a fleet as it was when this was made; ask before the fleet changes."""

    def __init__(self, fleet: WorkerIndex) -> None:
        self._fleet = fleet
        self._known: dict[str, bool] = {}

    def has_any(self, request: DeviceRequest) -> bool:
        """Whether any of its alternatives fits on any worker."""
        return any(self._fits(alternative) for alternative in request.alternatives)

    def _fits(self, alternative: Alternative) -> bool:
        known = self._known.get(alternative.key)
        if known is None:
            states = self._all if alternative.kind == "cpu" else self._with_some_free
            known = self._known[alternative.key] = any(
                FutureCapacity(self._fleet, number).fits(alternative, list(state.held), None)
                for number, state in states
            )
        return known

    @cached_property
    def _all(self) -> list[tuple[int, OccupancyState]]:
        states = self._fleet.states
        return [(number, states[number]) for number in self._fleet.first_workers()]

    @cached_property
    def _with_some_free(self) -> list[tuple[int, OccupancyState]]:
        """Those with an accelerator of which something is free."""
        return [
            (number, state)
            for number, state in self._all
            if any(
                held.share_milli < capacity[0]
                for position, (held, capacity) in enumerate(zip(state.held, state.shape.capacity, strict=True))
                if position != state.shape.cpu
            )
        ]
