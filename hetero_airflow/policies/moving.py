"""Makes room for a large request by moving small ones that run to other devices.

Moved is only who can go on at once: in a pretence of the next decision the large request gets its place, then each
that made room finds one. The next decision comes to the same, since the queue (`consolidation.large_first`) has the
large request first and those that were moved next, and since room is made only if nobody waits before. What is to
be whose then, others do not get before.

Bounded: at most `MAX_MOVES` a decision, for one large request; and who has got its devices keeps them for a minimum
time. Of the workers on which room could be made, that is chosen where the fewest device-seconds are lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from hetero_airflow.matching.fleet import Fleet, Keep
from hetero_airflow.matching.matcher import Fit, State
from hetero_airflow.matching.outlook import Outlook, added, freed
from hetero_airflow.matching.scoring import Held
from hetero_airflow.model.estimates import Estimates
from hetero_airflow.model.lease import Lease, LeaseState
from hetero_airflow.model.plan import Preempt, Reason, ReasonCode
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import Pending, Snapshot
from hetero_airflow.policies.preemption import Holding, Preemption, Rank, holdings
from hetero_airflow.policies.progress import Progress
from hetero_airflow.policies.reservation import MakeNoRoom, MakeRoom, Room
from hetero_airflow.policies.walk import best_place

MIN_STAY_S = 70.0
"""For so long whoever got its devices is not moved: ten times what it costs a small request."""
MAX_MOVES = 16
MAX_TRIALS = 16
"""Workers on which room is tried to be made, the cheapest first."""


def is_large(pending: Pending) -> bool:
    """Whether it asks for several accelerators of one worker.

    >>> from hetero_airflow.testing import a_pending
    >>> [is_large(a_pending(device=text)) for text in ("gpu:2", "gpu", "gpu:0.5", "cpu:8")]
    [True, False, False, False]
    """
    return any(one.kind != "cpu" and one.count > 1 for one in pending.request.alternatives)


def was_moved(pending: Pending) -> bool:
    """Whether it is a small request that has held devices before, and so can have been moved."""
    return bool(pending.served) and not pending.gang and not is_large(pending)


def room_by_moving(policy: str) -> MakeRoom:
    """Small requests are moved where the engine can take leases back.

    :param policy: its name, for those that are moved
    """

    def make_room(fleet: Fleet, snapshot: Snapshot, now: datetime) -> Room:
        if not snapshot.can_preempt:
            return MakeNoRoom(fleet, snapshot, now)
        return MovingRoom(policy, fleet, snapshot, now)

    return make_room


@dataclass(frozen=True, slots=True)
class _Option:
    """A worker on which the large request fits once some leases there have ended."""

    number: int
    alternative: Alternative
    victims: tuple[Holding, ...]
    leaving: tuple[Lease, ...]
    """Told to end before."""

    @property
    def price(self) -> tuple[float, int, int]:
        return sum(one.loss_device_s for one in self.victims), len(self.victims), self.number

    @property
    def leases(self) -> list[Lease]:
        return [*self.leaving, *(victim.leases[0] for victim in self.victims)]


class MovingRoom:
    """Room that is made during one decision, for one large request at most."""

    def __init__(self, policy: str, fleet: Fleet, snapshot: Snapshot, now: datetime) -> None:
        self._policy = policy
        self._fleet = fleet
        self._snapshot = snapshot
        self._now = now
        self._is_done = False
        self._preemptions: tuple[Preempt, ...] = ()
        self.until: datetime | None = None
        """When a request that could be moved then has had its devices for the minimum time."""

    def preemptions(self) -> Sequence[Preempt]:
        """Who is moved."""
        return self._preemptions

    def covers(self, unit: Sequence[Pending]) -> bool:
        """No: where no room can be made, what the request needs is kept for it."""
        return False

    def make(self, unit: Sequence[Pending], keep: Keep | None) -> Reason | None:
        """Why a large request waits for which others are moved; None where that is not possible, or somebody waits
        before it."""
        if self._is_done or keep is not None or len(unit) > 1 or not is_large(unit[0]):
            return None
        self._is_done = True
        pending, leaving = unit[0], self._leaving()
        for options in (self._awaited(pending, leaving), self._movable(pending, leaving)):
            for option in options:
                places = self._try(option)
                if places is not None:
                    return self._carry_out(pending, option, *places)
        return None

    # -- where it could be -----------------------------------------------------------------------------------------

    def _leaving(self) -> dict[int, list[Lease]]:
        found: defaultdict[int, list[Lease]] = defaultdict(list)
        numbers = {seat.worker.id: number for number, seat in enumerate(self._fleet.seats)}
        for lease in self._snapshot.leases:
            if lease.state is LeaseState.PREEMPTED and lease.worker_id in numbers:
                found[numbers[lease.worker_id]].append(lease)
        return found

    def _awaited(self, pending: Pending, leaving: dict[int, list[Lease]]) -> Iterable[_Option]:
        """Where it fits as soon as those have ended that were told to."""
        for alternative in pending.request.alternatives:
            for number, leases in sorted(leaving.items()):
                outlook = Outlook(self._fleet, number)
                if outlook.fits(alternative, _without(outlook, leases), None):
                    yield _Option(number, alternative, (), tuple(leases))

    def _movable(self, pending: Pending, leaving: dict[int, list[Lease]]) -> Iterable[_Option]:
        """Where it fits once small ones have been moved, the cheapest first."""
        by_worker: defaultdict[int, list[Holding]] = defaultdict(list)
        rank = (float(pending.request.priority.rank),)
        for one in holdings(Preemption(_class_of_small, MIN_STAY_S), self._fleet, self._snapshot, self._now):
            if one.rank != rank or len(one.leases) > 1 or self._snapshot.holders[one.leases[0].request_id].gang:
                continue
            if one.protected_until <= self._now:
                by_worker[one.workers[0]].append(one)
            elif self.until is None or one.protected_until < self.until:
                self.until = one.protected_until
        for alternative in pending.request.alternatives:
            found = (
                self._option(alternative, number, small, leaving.get(number, ())) for number, small in by_worker.items()
            )
            yield from sorted((one for one in found if one is not None), key=lambda one: one.price)[:MAX_TRIALS]

    def _option(
        self, alternative: Alternative, number: int, small: Sequence[Holding], leaving: Sequence[Lease]
    ) -> _Option | None:
        outlook = Outlook(self._fleet, number)
        held = _without(outlook, [*leaving, *(one.leases[0] for one in small)])
        if not outlook.fits(alternative, held, None):
            return None
        victims: list[Holding] = []
        for one in sorted(small, key=lambda one: (-one.loss_device_s, one.id)):
            beside = added(held, outlook.taken(one.leases[0].claims))
            if outlook.fits(alternative, beside, None):
                held = beside
            else:
                victims.append(one)
        if not 0 < len(victims) <= MAX_MOVES:
            return None
        return _Option(number, alternative, tuple(victims), tuple(leaving))

    # -- whether all go on -----------------------------------------------------------------------------------------

    def _try(self, option: _Option) -> tuple[Fit, list[tuple[int, Fit]]] | None:
        """Where the large request and those that go will be; None unless all that are to be moved find places at once.

        Those that were moved before and wait still are in the queue with them, and find theirs by themselves.
        """
        fleet = self._fleet
        outlook = Outlook(fleet, option.number)
        held = _without(outlook, option.leases)
        fit = outlook.fit(option.alternative, held, None)
        if fit is None:
            return None
        seen = fleet.states[option.number]
        soon = fleet.matcher.state(seen.shape, seen.is_lost, tuple(held))
        fleet.put(option.number, fleet.matcher.taken(soon, fit, self._now.timestamp()))
        going = {lease.request_id for lease in option.leases}
        holders = [self._snapshot.holders[one] for one in sorted(going) if one in self._snapshot.holders]
        waiting = [one for one in self._snapshot.pending if was_moved(one)]
        is_possible = True
        before: dict[int, State] = {}
        kept: list[tuple[int, Fit]] = []
        for one in sorted((*holders, *waiting), key=_turn):
            place = best_place(fleet, one.request, None)
            if place is None:
                if one.id in going and option.victims:
                    is_possible = False
                    break
                continue
            number, found = place[1:]
            before.setdefault(number, fleet.states[number])
            fleet.take(number, found, self._now)
            if one.id in going:
                kept.append((number, found))
        for number, state in before.items():
            fleet.put(number, state)
        fleet.put(option.number, seen)
        return (fit, kept) if is_possible else None

    def _carry_out(self, pending: Pending, option: _Option, fit: Fit, kept: Sequence[tuple[int, Fit]]) -> Reason:
        outlook = Outlook(self._fleet, option.number)
        outlook.held = _without(outlook, option.leases)
        outlook.promise(fit)
        for number, found in kept:
            self._fleet.take(number, found, self._now)
        self._preemptions = tuple(
            Preempt(
                lease.id,
                lease.token,
                lease.request_id,
                pending.id,
                f"{self._policy}: moves to other devices, so that {pending.id} finds several on one worker",
            )
            for victim in option.victims
            for lease in victim.leases
        )
        self.until = None
        where, moves = self._fleet.seats[option.number].worker.id, len(option.leases)
        whose = "1 request moves" if moves == 1 else f"{moves} requests move"
        return Reason(ReasonCode.PREEMPTING, str(pending.request), f"devices of worker {where}, from which {whose}")


def _without(outlook: Outlook, leases: Iterable[Lease]) -> list[Held]:
    held = outlook.held
    for lease in leases:
        held = freed(held, outlook.taken(lease.claims))
    return held


def _turn(pending: Pending) -> tuple[int, int, datetime, str]:
    """Where in the queue they stand among themselves."""
    return pending.request.priority.rank, -pending.weight, pending.submitted_at, pending.id


def _class_of_small(progress: Progress, estimates: Estimates) -> Rank | None:
    """The class of a request that may be moved."""
    return None if is_large(progress.pending) else (float(progress.pending.request.priority.rank),)
