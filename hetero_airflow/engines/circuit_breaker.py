"""Services that may not answer: each call has a time limit, and after a failure there is a pause without calls.

So a silent service costs the scheduler's loop one time limit in each pause, and not one for each task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

PAUSE_S = 5.0
"""After a call that failed, no call is made for this long."""


class CircuitBreaker:
    """Stops the calls to one service for a while after it failed to answer (Nygard, Release It!, 2007).

    :param service: its name in warnings
    :param effect: what goes on meanwhile, as a sentence
    """

    def __init__(self, service: str, effect: str, now: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._effect = effect
        self._now = now
        self._until: float | None = None
        self._text = ""

    @property
    def is_open(self) -> bool:
        """Whether the service did not answer, and it is not yet time to try again."""
        return self._until is not None and self._now() < self._until

    def note_failure(self, error: BaseException) -> None:
        """A call failed. Logs a warning, unless the last one said the same."""
        text = f"{type(error).__name__}: {error}"
        if text != self._text:
            log.warning("%s does not answer: %s. %s", self._service, text, self._effect)
        self._text, self._until = text, self._now() + PAUSE_S

    def note_answer(self) -> None:
        """A call succeeded."""
        self._text, self._until = "", None
