"""Gangs in a plan: all members are placed together, or none. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from hetero_airflow.model.lease import Lease
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import PendingRequest, Snapshot


def gang_faults(snapshot: Snapshot, plan: Plan) -> Iterable[str]:
    """A line for each gang of which a plan places some members, but not all that hold no lease yet."""
    pending = {one.id: one for one in snapshot.pending if one.gang}
    if not pending:
        return
    placed: defaultdict[str, list[PendingRequest]] = defaultdict(list)
    for place in plan.places:
        if place.request_id in pending:
            placed[pending[place.request_id].gang].append(pending[place.request_id])
    holding = Counter(one.gang for one in snapshot.holders.values() if one.gang)
    for gang, members in placed.items():
        size = members[0].gang_size
        if len(members) + holding[gang] < size:
            yield f"gang {gang} of {size} is placed in part: {len(members)} now, {holding[gang]} before"


def partially_granted_gangs(
    leases: Iterable[Lease], refused: Iterable[str], pending: Mapping[str, PendingRequest]
) -> list[Lease]:
    """The leases just granted to members of gangs of which another member was refused."""
    torn = {pending[request_id].gang for request_id in refused if request_id in pending} - {""}
    return [lease for lease in leases if torn and pending[lease.request_id].gang in torn]
