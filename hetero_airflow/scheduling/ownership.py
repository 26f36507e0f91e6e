"""The part of a plan that one engine carries out now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

from hetero_airflow.model.plan import Decision, Place, Plan, Reason, ReasonCode, Wait


def owned_decisions(plan: Plan, ours: Set[str], slots: int | None, gangs: Mapping[str, str]) -> Plan:
    """The decisions on requests that are ours; placements that the engine has no slot for wait instead.

    A gang gets slots for all its members here or for none; one that waits for them lets later requests have what
    is left, since it is not known whether there are ever enough. Of a gang whose members are with several
    schedulers, the one that has the first of those that are placed places all of them, and each starts its own. A
    position in the queue counts all requests that wait, whoever has them.

    :param gangs: request id → its gang, of the requests that have one
    """
    placed = [place.request_id for place in plan.places]
    if (slots is None or len(placed) <= slots) and all(decision.request_id in ours for decision in plan.decisions):
        return plan
    sizes = Counter(gangs[one] for one in placed if one in gangs and one in ours)
    leaders = {gangs[one]: one for one in reversed(placed) if one in gangs}
    led = {gang for gang, one in leaders.items() if one in ours}
    node_assigns_devices: dict[str, bool] = {}
    decisions: list[Decision] = []
    taken = waiting = 0
    for decided in plan.decisions:
        decision = decided
        gang = gangs.get(decision.request_id, "")
        is_mine = decision.request_id in ours
        if isinstance(decision, Place) and (is_mine or gang in led):
            unit = gang or decision.request_id
            if unit not in node_assigns_devices:
                needed = sizes[gang] if gang else 1
                node_assigns_devices[unit] = slots is None or taken + needed <= slots
                taken += needed if node_assigns_devices[unit] or not gang else 0
            if gang and gang not in led:
                decision = _wait_instead(
                    decision, _LEADER_ELSEWHERE, "placed, but another scheduler is to place its gang"
                )
            elif not node_assigns_devices[unit]:
                found = f"{'too few' if gang else 'none'} free, though {decision.worker_id} has the devices"
                reason = Reason(ReasonCode.SLOTS, _slots_text(sizes[gang]), found)
                decision = _wait_instead(decision, reason, "fits, but the engine has no free process")
        if isinstance(decision, Wait):
            waiting += 1
            decision = decision._replace(position=waiting) if decision.position != waiting else decision
        if is_mine or (gang in led and isinstance(decision, Place)):
            decisions.append(decision)
    return replace(plan, decisions=tuple(decisions))


_LEADER_ELSEWHERE = Reason(
    ReasonCode.GANG, "all members of its gang placed at once", "the first of them with another scheduler"
)


def _slots_text(members: int) -> str:
    return f"{members} processes of the engine" if members > 1 else "a process of the engine"


def _wait_instead(place: Place, reason: Reason, summary: str) -> Wait:
    return Wait(place.request_id, 0, reason, replace(place.account, summary=summary))
