"""Best fit: the worker on which the least is left over; see `matching.packing.best_fit`."""

from __future__ import annotations

from hetero_airflow.matching.packing.best_fit import BestFitMeasure, LargestCapacity
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.core.scored_policy import ScoredPolicy
from hetero_airflow.units import MILLI_PER_DEVICE


class BestFit(ScoredPolicy[LargestCapacity]):
    """Uses no request mix: it compares the free cores and accelerators with those of the largest worker."""

    def __init__(self) -> None:
        super().__init__("best_fit", _largest_capacity, BestFitMeasure)


def _largest_capacity(snapshot: Snapshot) -> LargestCapacity:
    cores = (worker.cpu.capacity_milli for worker in snapshot.workers if worker.cpu)
    accelerators = (sum(device.kind != "cpu" for device in worker.devices) for worker in snapshot.workers)
    return LargestCapacity(max(cores, default=0), max(accelerators, default=0) * MILLI_PER_DEVICE)
