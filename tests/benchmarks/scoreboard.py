"""A table of the scores of all workers for all alternatives, which makes placements by a measure fast.

A placement changes one worker, so one column; a question is the maximum of one row. It is for streams of requests that
are placed one by one, with alternatives known in advance and accelerators of one model per worker.
"""

from collections.abc import Sequence

import numpy as np

from hetero_airflow.matching.feasibility import feasibility_of
from hetero_airflow.matching.packing.demand import (
    Floats,
    FreeCapacity,
    accelerator_positions,
    device_demand,
    free_capacity,
)
from hetero_airflow.matching.packing.scorer import PackingMeasure
from hetero_airflow.matching.scoring import NO_ALLOCATION
from hetero_airflow.matching.shapes import Shapes
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.worker import Worker
from hetero_airflow.units import MILLI_PER_DEVICE
from tests.benchmarks.demand_arrays import DeviceDemands, MeasureOfDemands, for_demands


class Scoreboard:
    """Idle workers, ordered by id, and what is placed on them."""

    def __init__(self, measure: PackingMeasure, workers: Sequence[Worker], alternatives: Sequence[Alternative]) -> None:
        shapes = Shapes()
        entries = [shapes.entry(worker) for worker in sorted(workers, key=lambda worker: worker.id)]
        self.worker_ids = [entry.worker.id for entry in entries]
        self._demands = DeviceDemands.of(device_demand(alternative) for alternative in alternatives)
        on: dict[object, tuple[MeasureOfDemands, np.ndarray]] = {}
        for entry in entries:
            if entry.shape not in on:
                barred = np.array([not feasibility_of(a, entry.shape).is_servable for a in alternatives], dtype=bool)
                on[entry.shape] = for_demands(measure, entry.shape, self._demands), barred
        self._on = [on[entry.shape] for entry in entries]
        self.free = [free_capacity(entry.shape, [NO_ALLOCATION] * len(entry.shape.devices)) for entry in entries]
        self.devices = sum(len(accelerator_positions(entry.shape)) for entry in entries)
        self.scores = np.empty((len(alternatives), len(entries)))
        """[alternative, worker]; −∞ where it does not fit."""
        self._columns: dict[tuple[int, FreeCapacity], Floats] = {}
        for number in range(len(entries)):
            self.refresh(number)

    def best(self, alternative: int) -> int | None:
        """The worker with the greatest score, the first one on ties; None if it fits no worker."""
        row = self.scores[alternative]
        worker = int(row.argmax())
        return None if row[worker] == -np.inf else worker

    def fitting(self, alternative: int) -> list[int]:
        """All workers where it fits."""
        fits: list[int] = np.flatnonzero(self.scores[alternative] > -np.inf).tolist()
        return fits

    def share_milli(self, alternative: int) -> int:
        """Thousandths that it takes of each accelerator; 0 if it takes none."""
        return self._demands.all[alternative].share_milli

    def take(self, alternative: int, worker: int, part: int | None = None) -> None:
        """Note that it is placed on the worker.

        :param part: the free part that a share takes; None: the one that the measure chooses
        """
        demand, free = self._demands.all[alternative], self.free[worker]
        parts = list(free.parts)
        if demand.share_milli == MILLI_PER_DEVICE:
            del parts[len(parts) - demand.devices :]
            parts[:0] = [0] * demand.devices
        elif demand.share_milli:
            taken = self._on[worker][0].part(free, alternative) if part is None else part
            parts.remove(taken)
            parts.append(taken - demand.share_milli)
            parts.sort()
        self.free[worker] = FreeCapacity(
            free.cores_milli - demand.cores_milli, free.memory_bytes - demand.memory_bytes, tuple(parts)
        )
        self.refresh(worker)

    def refresh(self, worker: int) -> None:
        """Compute the scores of a worker whose free capacity has changed."""
        on, free = self._on[worker], self.free[worker]
        column = self._columns.get((id(on), free))
        if column is None:
            column = self._columns[id(on), free] = on[0].scores(free)
            np.putmask(column, on[1], -np.inf)
        self.scores[:, worker] = column
