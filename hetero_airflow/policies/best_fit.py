"""Best fit: the worker on which least is left over; see `matching.classic_fit`."""

from __future__ import annotations

from hetero_airflow.matching.classic_fit import BestFit as Valuation
from hetero_airflow.matching.classic_fit import Largest
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies.valuing import Valuing
from hetero_airflow.units import MILLI_PER_DEVICE


class BestFit(Valuing[Largest]):
    """Knows no mix: what is left of a worker is cores and accelerators, by those of the largest."""

    def __init__(self) -> None:
        super().__init__("best_fit", _largest, Valuation)


def _largest(snapshot: Snapshot) -> Largest:
    cores = (worker.cpu.capacity_milli for worker in snapshot.workers if worker.cpu)
    accelerators = (sum(device.kind != "cpu" for device in worker.devices) for worker in snapshot.workers)
    return Largest(max(cores, default=0), max(accelerators, default=0) * MILLI_PER_DEVICE)
