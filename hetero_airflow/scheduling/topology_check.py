"""Does a plan keep what requests insist on: devices joined as asked, gangs as near together as asked? Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations

from hetero_airflow.matching.bandwidth import common_level, device_level, worker_location
from hetero_airflow.matching.gangs.placement import gang_level
from hetero_airflow.matching.linked_devices import needed_level
from hetero_airflow.model.plan import Place, Plan
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Worker


def topology_faults(snapshot: Snapshot, plan: Plan) -> Iterable[str]:
    """A line for each placement whose devices, or gang, are farther apart than asked; budgets are not looked at."""
    placed = {place.request_id for place in plan.places}
    demanding = {
        one.id: one
        for one in snapshot.pending
        if one.id in placed and any(alternative.topology for alternative in one.request.alternatives)
    }
    if not demanding:
        return
    workers = {worker.id: worker for worker in snapshot.workers}
    gangs: defaultdict[str, list[tuple[Alternative, Worker]]] = defaultdict(list)
    for place in plan.places:
        one, worker = demanding.get(place.request_id), workers.get(place.worker_id)
        if one is None or worker is None or not 0 <= place.alternative < len(one.request.alternatives):
            continue
        alternative = one.request.alternatives[place.alternative]
        yield from _device_faults(place, alternative, worker)
        if one.gang:
            gangs[one.gang].append((alternative, worker))
    for gang, members in gangs.items():
        allowed = gang_level(alternative for alternative, _ in members)
        found = common_level([worker_location(worker) for _, worker in members])
        if found is not None and found.rank > allowed.rank:
            yield f"gang {gang} is placed within one {found}, and asks for one {allowed}"


def _device_faults(place: Place, alternative: Alternative, worker: Worker) -> Iterable[str]:
    level = needed_level(alternative)
    if level is None:
        return
    claimed = {claim.device_id for claim in place.claims}
    devices = [device for device in worker.devices if device.id in claimed and device.kind != "cpu"]
    for one, other in combinations(devices, 2):
        if device_level(worker, one, other).rank > level.rank:
            yield f"{place.request_id} gets {one.id} and {other.id}, which are not joined by {level}"
