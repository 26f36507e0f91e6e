"""The policy fifo in its plainest form: each request is matched with every worker. `bench_decide` compares with it.

It uses the same rules (`feasibility_of`, `device_need`, `TightFitScorer`) and gets the same placements, but without
shapes, states and rankings. It ends at the first request that has to wait: from there on the policy keeps devices.
"""

from hetero_airflow.matching.feasibility import ResourceNeed, device_count, device_need, feasibility_of, host_need
from hetero_airflow.matching.scoring import Allocation, TightFitScorer
from hetero_airflow.matching.shapes import Shapes
from hetero_airflow.model.request import Alternative, DeviceRequest
from hetero_airflow.model.snapshot import Snapshot

Placed = tuple[str, str, int, tuple[str, ...]]
"""Request id, worker id, alternative, device ids."""


class Naive:
    """Decides over a snapshot in which all workers are online, and every request could run on an idle one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._placement = TightFitScorer()
        self._pending = sorted(snapshot.pending, key=lambda request: (request.submitted_at, request.id))
        self._slots = [Shapes().entry(worker) for worker in sorted(snapshot.workers, key=lambda worker: worker.id)]
        self._held = []
        for slot in self._slots:
            used = [snapshot.used(slot.worker.id, device_id) for device_id in slot.device_ids]
            self._held.append([Allocation(usage.share_milli, usage.memory_bytes) for usage in used])

    def decide(self) -> list[Placed]:
        """The placements before the first request that has to wait, in the order in which they are made."""
        placed: list[Placed] = []
        for pending in self._pending:
            candidate = self._best(pending.request)
            if candidate is None:
                break
            number, worker, takes, chosen = candidate
            for position, need in takes:
                before = self._held[worker][position]
                self._held[worker][position] = Allocation(
                    before.share_milli + need.share_milli, before.memory_bytes + need.memory_bytes
                )
            slot = self._slots[worker]
            placed.append((pending.id, slot.worker.id, number, tuple(slot.device_ids[p] for p in chosen)))
        return placed

    def _best(self, request: DeviceRequest):
        for number, alternative in enumerate(request.alternatives):
            best = None
            for worker in range(len(self._slots)):
                candidate = self._fit(alternative, worker)
                if candidate is not None and (best is None or candidate[0] > best[0]):
                    best = (candidate[0], number, worker, candidate[1], candidate[2])
            if best is not None:
                return best[1:]
        return None

    def _fit(self, alternative: Alternative, worker: int):
        shape, held = self._slots[worker].shape, self._held[worker]
        verdict = feasibility_of(alternative, shape)
        if not verdict.is_servable:
            return None

        def has_capacity(position: int, need: ResourceNeed) -> bool:
            share_milli, memory = shape.capacity[position]
            free_after = (
                share_milli - held[position].share_milli - need.share_milli,
                memory - held[position].memory_bytes - need.memory_bytes,
            )
            return (not need.share_milli or free_after[0] >= 0) and (not need.memory_bytes or free_after[1] >= 0)

        free = [p for p in verdict.usable if has_capacity(p, device_need(alternative, shape.devices[p]))]
        beside = host_need(alternative)
        if len(free) < device_count(alternative) or (beside is not None and not has_capacity(shape.cpu, beside)):
            return None
        chosen = self._placement.choose(alternative, shape, held, free)
        terms = self._placement.terms(alternative, shape, held, verdict, chosen)
        takes = [(p, device_need(alternative, shape.devices[p])) for p in chosen]
        return sum(terms.values()), takes + ([(shape.cpu, beside)] if beside is not None else []), chosen
