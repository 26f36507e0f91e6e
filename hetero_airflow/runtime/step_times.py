"""How the time of a task's steps divides into waiting for data, saving, and the rest, which computes."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from hetero_airflow.model.run import TimeShares


class StepTimes:
    """Adds up what the training's thread waits for. What loads or saves beside it does not count.

    >>> seconds = iter([0.0, 1.0, 4.0, 10.0]).__next__
    >>> times = StepTimes(seconds)
    >>> with times.loading():
    ...     pass
    >>> times.shares()
    TimeShares(data=0.3, compute=0.7, save=0.0)
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._has_loader = False
        self.restart()

    def restart(self) -> None:
        """Begin to count now."""
        self._since = self._monotonic()
        self._waited_s = {"data": 0.0, "save": 0.0}

    def loading(self) -> AbstractContextManager[None]:
        """Within the context, the training waits for a batch."""
        self._has_loader = True
        return self._waiting("data")

    def saving(self) -> AbstractContextManager[None]:
        """Within the context, the training waits until its state is copied."""
        return self._waiting("save")

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        begin = self._monotonic()
        try:
            yield
        finally:
            self._waited_s[what] += self._monotonic() - begin

    def shares(self) -> TimeShares | None:
        """The shares so far; None if no loader says what the task waits for, or before any time has passed."""
        elapsed_s = self._monotonic() - self._since
        if not self._has_loader or elapsed_s <= 0:
            return None
        shares = {what: seconds / elapsed_s for what, seconds in self._waited_s.items()}
        return TimeShares(compute=max(0.0, 1 - sum(shares.values())), **shares)
