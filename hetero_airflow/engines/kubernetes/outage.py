"""Whether a cluster answers, for its log: one line when it goes away, and one when all of it is back."""

import logging
import threading
import time

log = logging.getLogger(__name__)


class Outage:
    """What several threads know about one cluster.

    :param cluster: for log lines, such as ``the cluster eu``
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._failed: set[str] = set()
        """The parts of the work with the cluster that get no answer."""
        self._since = 0.0

    def note_failure(self, part: str, error: str) -> None:
        """A part of the work got no answer."""
        with self._lock:
            is_first = not self._failed
            self._failed.add(part)
            if is_first:
                self._since = time.monotonic()
        if is_first:
            log.warning(
                "%s does not answer (%s: %s). Its tasks wait, and running ones go on.",
                self._cluster.capitalize(), part, error,
            )  # fmt: skip

    def note_answer(self, part: str) -> None:
        """A part of the work got an answer."""
        with self._lock:
            is_last = self._failed == {part}
            self._failed.discard(part)
        if is_last:
            log.warning("%s answers again, after %.0f s.", self._cluster.capitalize(), time.monotonic() - self._since)
