"""With how many of its members a gang could ever be placed: asked of the cycle, on the workers of a snapshot, idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hetero_airflow.model.plan import Place, Reason
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.policy import Policy
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.simulator.engine import SimulatedEngine
from hetero_airflow.simulator.options import START
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen

_LEASE_S = 60.0
"""Of no account: there is one cycle."""


class PlaceableGang(NamedTuple):
    """How large a gang can be."""

    size: int
    """The most members that can be placed together; 0 where it goes on with no such number."""
    reason: Reason | None
    """Why not with all; None if it can."""


def placeable_gang(snapshot: Snapshot, members: Sequence[PendingRequest], least: int, policy: Policy) -> PlaceableGang:
    """With how many the policy places a gang if nothing else is there, trying one less each time, as the executor does.

    >>> from hetero_airflow.policies.fifo import Fifo
    >>> from hetero_airflow.testing import a_pending, a_worker
    >>> members = [a_pending(f"rank{n}", "gpu", gang="g", gang_size=3) for n in range(3)]
    >>> room = placeable_gang(Snapshot(1, (a_worker(),)), members, 1, Fifo())
    >>> room.size, str(room.reason)
    (2, 'count: asked all 3 of gang g, 1 × gpu each, found room for 2 at the same time, even when all workers are idle')

    :param members: in the order of their ranks: who is left out is last
    :param least: with how many it goes on without the others; of a gang that lacks instances, with none
    """
    most = members[0].gang_size
    first: Reason | None = None
    for size in range(most, least - 1, -1) if len(members) == most else (most,):
        reason = _obstacle(snapshot, [replace(one, gang_size=size) for one in members[:size]], policy)
        if reason is None:
            return PlaceableGang(size, first)
        first = first or reason
    return PlaceableGang(0, first)


def _obstacle(snapshot: Snapshot, members: Sequence[PendingRequest], policy: Policy) -> Reason | None:
    """Why the next cycle would not place a gang on these workers if they were idle; None if it would."""
    store = MemoryStore(keeps_history=False)
    store.record([*map(WorkerSeen, snapshot.workers), *map(RequestSubmitted, members)], START)
    cycle = Cycle(
        store,
        policy,
        SimulatedEngine(),
        _LEASE_S,
        policy_context=lambda seen: replace(seen, estimates=snapshot.estimates),
    )
    decisions = cycle.run(START).plan.decisions
    return next((decision.reason for decision in decisions if not isinstance(decision, Place)), None)
