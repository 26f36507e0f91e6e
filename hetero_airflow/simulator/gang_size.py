"""How large a gang can be: asked of the scheduling cycle, on the idle workers of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hetero_airflow.model.plan import Place, Reason
from hetero_airflow.model.snapshot import PendingRequest, Snapshot
from hetero_airflow.policies.policy import Policy
from hetero_airflow.scheduling.cycle import Cycle
from hetero_airflow.simulator.options import START
from hetero_airflow.simulator.world import SimulatedEngine
from hetero_airflow.store.memory import MemoryStore
from hetero_airflow.store.store import RequestSubmitted, WorkerSeen

_LEASE_S = 60.0
"""Any value: only one cycle runs."""


class PlaceableGang(NamedTuple):
    """How many members of a gang can be placed together."""

    size: int
    """0 if fewer than the gang needs."""
    reason: Reason | None
    """Why not all members; None if all can."""


def placeable_gang(snapshot: Snapshot, members: Sequence[PendingRequest], least: int, policy: Policy) -> PlaceableGang:
    """The most members that the policy places if all workers are idle; it tries one less each time, as the executor.

    >>> from hetero_airflow.policies.fifo import Fifo
    >>> from hetero_airflow.testing import a_pending, a_worker
    >>> members = [a_pending(f"rank{n}", "gpu", gang="g", gang_size=3) for n in range(3)]
    >>> gang = placeable_gang(Snapshot(1, (a_worker(),)), members, 1, Fifo())
    >>> gang.size, str(gang.reason)
    (2, 'count: asked all 3 of gang g, 1 × gpu each, found room for 2 at the same time, even when all workers are idle')

    :param members: in the order of their ranks: the last ones are left out
    :param least: the fewest members with which the gang runs
    """
    full_size = members[0].gang_size
    first_reason: Reason | None = None
    for size in range(full_size, least - 1, -1) if len(members) == full_size else (full_size,):
        gang = [replace(member, gang_size=size) for member in members[:size]]
        reason = _why_not_placed(snapshot, gang, policy)
        if reason is None:
            return PlaceableGang(size, first_reason)
        first_reason = first_reason or reason
    return PlaceableGang(0, first_reason)


def _why_not_placed(snapshot: Snapshot, members: Sequence[PendingRequest], policy: Policy) -> Reason | None:
    """Why a cycle would not place a gang on the idle workers; None if it would."""
    store = MemoryStore(keeps_history=False)
    store.record([*map(WorkerSeen, snapshot.workers), *map(RequestSubmitted, members)], START)
    cycle = Cycle(
        store,
        policy,
        SimulatedEngine(),
        _LEASE_S,
        policy_context=lambda idle: replace(idle, estimates=snapshot.estimates),
    )
    decisions = cycle.run(START).plan.decisions
    return next((decision.reason for decision in decisions if not isinstance(decision, Place)), None)
