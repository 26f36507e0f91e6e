"""Workers in their states, as far as gangs look at them: as they are, and as they would be if nothing were leased."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hetero_airflow.matching.matcher import Matcher, State
from hetero_airflow.matching.scoring import NOTHING
from hetero_airflow.matching.shapes import Seat
from hetero_airflow.model.worker import WorkerState


class Standing(Protocol):
    """The workers, each in a state, some of which may move to others; a `Fleet` is one."""

    seats: list[Seat]
    states: list[State]

    @property
    def version(self) -> int:
        """Grows with each worker that moves."""
        ...

    def moved_since(self, version: int) -> Sequence[int]:
        """The workers that moved since that version."""
        ...

    def firsts(self) -> list[int]:
        """The first worker of each state that there is."""
        ...


class Idle:
    """The workers as they would be if nothing were leased of them. Nothing moves here."""

    version = 0

    def __init__(self, seats: list[Seat], matcher: Matcher) -> None:
        self.seats = seats
        self.states = [
            matcher.state(seat.shape, seat.worker.state is WorkerState.LOST, (NOTHING,) * len(seat.device_ids))
            for seat in seats
        ]

    def moved_since(self, version: int) -> Sequence[int]:
        """None ever."""
        return ()

    def firsts(self) -> list[int]:
        """The first worker of each state that there is."""
        return list({state: number for number, state in reversed(list(enumerate(self.states)))}.values())
