"""All workers during one decision: grouped by state, and ranked for each alternative that is asked for.

A placement moves one worker from one state to another; each ranking catches up with such moves when
it is asked again. So a decision costs the states that changed, not the workers that exist.
"""

from __future__ import annotations

import heapq
from collections import Counter
from datetime import datetime
from itertools import count

from hetero_airflow.matching.feasibility import Miss
from hetero_airflow.matching.matcher import Fit, Kept, Matcher, Outcome, State
from hetero_airflow.matching.shapes import Seat, Shape
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.plan import Reason
from hetero_airflow.model.request import Alternative
from hetero_airflow.model.snapshot import Snapshot

_Entry = tuple[tuple[float, ...], int, int, State]
"""What it is ranked by, the first worker of the state when it was ranked, a serial number, the state."""


class Fleet:
    """The workers of a snapshot, ordered by id, less what this decision has placed so far."""

    def __init__(self, matcher: Matcher, snapshot: Snapshot) -> None:
        self.matcher = matcher
        self.seats: list[Seat] = [matcher.seat(w) for w in sorted(snapshot.workers, key=lambda worker: worker.id)]
        self.states = matcher.present(self.seats, snapshot)
        self.members: dict[State, list[int]] = {}
        """State → heap of workers that were in it at some time of this decision; see `lowest`."""
        self.sizes: Counter[State] = Counter(self.states)
        for number, state in enumerate(self.states):
            self.members.setdefault(state, []).append(number)
        self.moves: list[tuple[State, State]] = []
        self._shapes = frozenset(state.shape for state in self.members)
        self._online = frozenset(state.shape for state in self.members if not state.is_lost)
        self._kept: dict[Shape, Kept | None] = {}
        self._rankings: dict[str, Ranking] = {}

    @property
    def version(self) -> int:
        """Grows with each placement and reservation: equal questions at one version have equal answers."""
        return len(self.moves)

    def outcome(self, alternative: Alternative, state: State) -> Outcome:
        """What is true of the alternative on workers of the state, given what is kept for the head."""
        return self.matcher.outcome(alternative, state, self._kept.get(state.shape))

    def lowest(self, state: State) -> int | None:
        """The worker of the state that comes first by id."""
        heap = self.members[state]
        while heap and self.states[heap[0]] is not state:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def ranking(self, alternative: Alternative) -> Ranking:
        """All workers ranked for the alternative, as of now."""
        ranking = self._rankings.get(alternative.key)
        if ranking is None:
            ranking = self._rankings[alternative.key] = Ranking(self, alternative)
        ranking.catch_up()
        return ranking

    def is_servable(self, alternative: Alternative) -> bool:
        """Whether any worker as it is now, online and well, could run it if it were idle."""
        return any(self.matcher.verdict(alternative, shape).is_servable for shape in self._online)

    def claims(self, number: int, fit: Fit) -> tuple[Claim, ...]:
        """What a fit takes of a worker, by device id."""
        ids = self.seats[number].device_ids
        return tuple(
            Claim(device_id=ids[position], milli=need.milli, memory_bytes=need.memory_bytes)
            for position, need in fit.takes
        )

    def take(self, number: int, fit: Fit, now: datetime) -> None:
        """Note that a fit was placed on a worker."""
        before = self.states[number]
        after = self.matcher.taken(before, fit.takes, now.timestamp())
        self.states[number] = after
        self.sizes[before] -= 1
        self.sizes[after] += 1
        heapq.heappush(self.members.setdefault(after, []), number)
        self.moves.append((before, after))

    def keep_for(self, alternatives: tuple[Alternative, ...], members: int = 1) -> None:
        """From now on leave free what so many requests with these alternatives could ever use; once a decision."""
        self._kept = {shape: self.matcher.kept(alternatives, shape, members) for shape in self._shapes}
        self._rankings.clear()


class Ranking:
    """The workers ranked for one alternative: those that fit by score, the others by how close they come."""

    def __init__(self, fleet: Fleet, alternative: Alternative) -> None:
        self._fleet = fleet
        self._alternative = alternative
        self._fits: list[_Entry] = []
        self._misses: list[_Entry] = []
        self._serial = count()
        self.filtered: Counter[Reason] = Counter()
        """Reason → number of workers that it rules out."""
        self.version = fleet.version
        for state in fleet.members:
            if fleet.sizes[state]:
                self._add(state, fleet.sizes[state])

    def catch_up(self) -> None:
        """Take note of the moves since the last time."""
        for before, after in self._fleet.moves[self.version :]:
            outcome = self._fleet.outcome(self._alternative, before)
            if isinstance(outcome, Miss):
                self.filtered[outcome.reason] -= 1
            self._add(after, 1)
        self.version = self._fleet.version

    def best(self, limit: int = 1) -> list[tuple[int, Fit]]:
        """(worker, where on it), best first and one a state; ties go to the lower worker id."""
        found = self._first(self._fits, limit)
        return [(worker, outcome) for worker, outcome in found if isinstance(outcome, Fit)]

    def nearest(self) -> tuple[int, Miss] | None:
        """The worker that comes closest without fitting; ties go to the lower worker id."""
        found = self._first(self._misses, 1)
        return next(((worker, outcome) for worker, outcome in found if isinstance(outcome, Miss)), None)

    def _add(self, state: State, size: int) -> None:
        outcome = self._fleet.outcome(self._alternative, state)
        if isinstance(outcome, Miss):
            self.filtered[outcome.reason] += size
        lowest = self._fleet.lowest(state)
        if lowest is None:
            return
        if isinstance(outcome, Miss):
            is_curable, stage, amount = outcome.closeness
            heapq.heappush(self._misses, ((-is_curable, -stage, -amount), lowest, next(self._serial), state))
        else:
            heapq.heappush(self._fits, ((-outcome.score,), lowest, next(self._serial), state))

    def _first(self, heap: list[_Entry], limit: int) -> list[tuple[int, Outcome]]:
        """The first entries that still hold; those that moves have made void are dropped on the way."""
        held: dict[State, _Entry] = {}
        while heap and len(held) < limit:
            key, worker, serial, state = heapq.heappop(heap)
            lowest = self._fleet.lowest(state)
            if lowest is None or state in held:
                continue
            if lowest == worker:
                held[state] = (key, worker, serial, state)
            else:
                heapq.heappush(heap, (key, lowest, serial, state))
        for entry in held.values():
            heapq.heappush(heap, entry)
        return [(worker, self._fleet.outcome(self._alternative, state)) for state, (_, worker, _, _) in held.items()]
