"""The decisions of a plan that one scheduler carries out; the other schedulers carry out theirs."""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

from hetero_airflow.model.plan import Decision, Place, Plan, Reason, ReasonCode, Wait

_OTHER_LEADER = Reason(
    ReasonCode.GANG, "all members of its gang placed at once", "the first of them with another scheduler"
)


def with_starter(plan: Plan, owned_ids: Set[str], starter: str) -> Plan:
    """The plan with this scheduler as the one that starts the placed tasks which wait with it.

    Members of a gang that wait with other schedulers have no starter yet: those claim their starts.
    """
    if not plan.places:
        return plan
    return replace(
        plan,
        decisions=tuple(
            decision._replace(starter=starter)
            if isinstance(decision, Place) and decision.request_id in owned_ids
            else decision
            for decision in plan.decisions
        ),
    )


def owned_decisions(
    plan: Plan, owned_ids: Set[str], slots: int | None, gangs: Mapping[str, str], obstacle: Reason | None = None
) -> Plan:
    """The decisions on the requests of this scheduler; placements for which its engine has no slot wait instead.

    A gang gets slots for all its members here, or for none. Then later requests may use the slots, since there may
    never be enough for the gang. If several schedulers have members of a gang, the one that has the
    first placed member places all of them, and each scheduler dispatches its own. A position in the queue counts the
    waiting requests of all schedulers.

    :param owned_ids: ids of this scheduler's requests
    :param slots: how many placements the engine can start; None for any number
    :param gangs: request id → its gang, for the requests that have one
    :param obstacle: why nothing can start now: all placements wait for this reason, and nothing is preempted for them
    """
    placed = [place.request_id for place in plan.places]
    has_slots_for_all = slots is None or len(placed) <= slots
    if obstacle is None and has_slots_for_all and all(decision.request_id in owned_ids for decision in plan.decisions):
        return plan
    leaders = {gangs[request_id]: request_id for request_id in reversed(placed) if request_id in gangs}
    led_gangs = {gang for gang, request_id in leaders.items() if request_id in owned_ids}
    allocation = _Slots(slots, Counter(gangs[id_] for id_ in placed if id_ in gangs and id_ in owned_ids))
    decisions: list[Decision] = []
    waiting = 0
    for decided in plan.decisions:
        decision = decided
        gang = gangs.get(decision.request_id, "")
        is_owned = decision.request_id in owned_ids
        if isinstance(decision, Place) and (is_owned or gang in led_gangs):
            if obstacle is not None:
                decision = _wait_instead(decision, obstacle, "fits, but could not start")
            else:
                decision = allocation.place_or_wait(decision, gang, has_leader=gang in led_gangs)
        if isinstance(decision, Wait):
            waiting += 1
            decision = decision._replace(position=waiting) if decision.position != waiting else decision
        if is_owned or (gang in led_gangs and isinstance(decision, Place)):
            decisions.append(decision)
    return replace(plan, decisions=tuple(decisions), preemptions=() if obstacle else plan.preemptions)


class _Slots:
    """Gives the engine's slots to placements, in the order of the plan."""

    def __init__(self, slots: int | None, gang_sizes: Mapping[str, int]) -> None:
        self._free = slots
        self._gang_sizes = gang_sizes
        self._has_slots: dict[str, bool] = {}
        """Gang, or id of a request without one → whether it got its slots."""

    def place_or_wait(self, place: Place, gang: str, *, has_leader: bool) -> Place | Wait:
        """The placement, or why it waits instead.

        :param has_leader: this scheduler is the one that places the gang
        """
        members = self._gang_sizes[gang] if gang else 1
        has_slots = self._take(gang or place.request_id, members)
        if gang and not has_leader:
            return _wait_instead(place, _OTHER_LEADER, "placed, but another scheduler is to place its gang")
        if has_slots:
            return place
        slots = f"{members} processes of the engine" if members > 1 else "a process of the engine"
        free = f"{'too few' if gang else 'none'} free, though {place.worker_id} has the devices"
        return _wait_instead(place, Reason(ReasonCode.SLOTS, slots, free), "fits, but the engine has no free process")

    def _take(self, unit: str, needed: int) -> bool:
        """Whether the unit has slots; asked first, it takes all that it needs or none."""
        if unit not in self._has_slots:
            self._has_slots[unit] = self._free is None or needed <= self._free
            if self._free is not None and self._has_slots[unit]:
                self._free -= needed
        return self._has_slots[unit]


def _wait_instead(place: Place, reason: Reason, summary: str) -> Wait:
    return Wait(place.request_id, 0, reason, replace(place.account, summary=summary))
