"""What is to be done every so often, within a loop that comes by more often."""

from __future__ import annotations

from datetime import datetime, timedelta


class Periods:
    """Names with a period in seconds each.

    >>> from hetero_airflow.testing import FakeClock
    >>> clock, periods = FakeClock(), Periods(prune=60)
    >>> periods.is_due("prune", clock.now()), periods.is_due("prune", clock.advance(59))
    (True, False)
    """

    def __init__(self, **periods_s: float) -> None:
        self._periods = {name: timedelta(seconds=seconds) for name, seconds in periods_s.items()}
        self._next_at: dict[str, datetime] = {}

    def is_due(self, name: str, now: datetime) -> bool:
        """Whether the period has passed since this last said yes; the first time, and if a clock was set back, yes."""
        period = self._periods[name]
        if name in self._next_at and self._next_at[name] - period <= now < self._next_at[name]:
            return False
        self._next_at[name] = now + period
        return True
