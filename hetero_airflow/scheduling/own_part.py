"""The part of a plan that one engine carries out now."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from hetero_airflow.model.plan import Decision, Place, Plan, Reason, ReasonCode, Wait


def own_part(plan: Plan, ours: Set[str], slots: int | None) -> Plan:
    """The decisions on requests that are ours; placements that the engine has no slot for wait instead.

    A position in the queue counts all requests that wait, whoever has them.
    """
    decisions: list[Decision] = []
    placed = waiting = 0
    for decided in plan.decisions:
        decision = decided
        if isinstance(decision, Place) and decision.request_id in ours:
            placed += 1
            if slots is not None and placed > slots:
                decision = _waiting_for_slot(decision)
        if isinstance(decision, Wait):
            waiting += 1
            decision = replace(decision, position=waiting) if decision.position != waiting else decision
        if decision.request_id in ours:
            decisions.append(decision)
    return Plan(tuple(decisions), plan.preemptions)


def _waiting_for_slot(place: Place) -> Wait:
    found = f"none free, though {place.worker_id} has the devices"
    reason = Reason(ReasonCode.SLOTS, "a process of the engine", found)
    return Wait(place.request_id, 0, reason, replace(place.account, summary="fits, but the engine has no free process"))
