"""Whether requests fit anywhere at all, for many requests of one decision.

This costs less than a ranking, which scores each placement: nothing is scored, equal alternatives are checked once,
and only workers with a partly free accelerator are checked for accelerators.
"""

from functools import cached_property

from hetero_airflow.matching.future_capacity import FutureCapacity
from hetero_airflow.matching.matcher import OccupancyState
from hetero_airflow.matching.worker_index import WorkerIndex
from hetero_airflow.model.request import Alternative, DeviceRequest


class FitCache:
    """Valid until the index changes."""

    def __init__(self, index: WorkerIndex) -> None:
        self._index = index
        self._fits: dict[str, bool] = {}

    def fits_anywhere(self, request: DeviceRequest) -> bool:
        """Whether one of its alternatives fits on a worker."""
        return any(self._fits_anywhere(alternative) for alternative in request.alternatives)

    def _fits_anywhere(self, alternative: Alternative) -> bool:
        fits = self._fits.get(alternative.key)
        if fits is None:
            workers = self._workers if alternative.kind == "cpu" else self._with_free_accelerator
            fits = self._fits[alternative.key] = any(
                FutureCapacity(self._index, number).fits(alternative, list(state.held), None)
                for number, state in workers
            )
        return fits

    @cached_property
    def _workers(self) -> list[tuple[int, OccupancyState]]:
        """The first worker of each state."""
        return [(number, self._index.states[number]) for number in self._index.first_workers()]

    @cached_property
    def _with_free_accelerator(self) -> list[tuple[int, OccupancyState]]:
        """Those with an accelerator that is not fully leased."""
        return [
            (number, state)
            for number, state in self._workers
            if any(
                held.share_milli < capacity[0]
                for position, (held, capacity) in enumerate(zip(state.held, state.shape.capacity, strict=True))
                if position != state.shape.cpu
            )
        ]
