"""Time, and what is done from time to time."""

from datetime import UTC, datetime, timedelta


class Clock:
    """The machine's wall clock. A test has one of its own."""

    def now(self) -> datetime:
        """The current time, aware, in UTC."""
        return datetime.now(UTC)


class Periods:
    """Named periods in seconds, for work that a loop does less often than it runs.

    >>> from hetero_airflow.testing import FakeClock
    >>> clock, periods = FakeClock(), Periods(prune=60)
    >>> periods.is_due("prune", clock.now()), periods.is_due("prune", clock.advance(59))
    (True, False)
    """

    def __init__(self, **periods_s: float) -> None:
        self._periods = {name: timedelta(seconds=seconds) for name, seconds in periods_s.items()}
        self._next_at: dict[str, datetime] = {}

    def is_due(self, name: str, now: datetime) -> bool:
        """Whether the period has passed since the last True. Also True the first time, and if a clock was set back."""
        period = self._periods[name]
        if name in self._next_at and self._next_at[name] - period <= now < self._next_at[name]:
            return False
        self._next_at[name] = now + period
        return True
