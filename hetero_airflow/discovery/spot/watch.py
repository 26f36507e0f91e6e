"""Looks for notices in a thread of its own, so that a metadata server that is slow or silent delays no heartbeat."""

import logging
import threading

from hetero_airflow.discovery.spot.notices import NoticeSource, NoticeUnreadable

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""AWS suggests 5 s of its 120 s, and Azure 1 s. Google Cloud gives 30 s in all."""


class SpotWatch:
    """The last notice that a source gave. Reading it never blocks. Nothing is read before `start`.

    :param source: None: there is never a notice
    """

    def __init__(self, source: NoticeSource | None, look_every_s: float | None = None) -> None:
        self.notice = ""
        """Why the provider takes this machine back; empty if it does not. The last one counts while no answer comes."""
        self.has_looked = source is None
        """Whether the source has answered once."""
        self._source, self._look_every_s = source, look_every_s or LOOK_EVERY_S
        self._is_closed = threading.Event()
        self._is_readable = True
        self._thread: threading.Thread | None = None

    @property
    def is_watching(self) -> bool:
        """Whether there is a source."""
        return self._source is not None

    def start(self) -> None:
        """Start the thread if there is a source. May be called again."""
        if self._thread is None and self._source is not None:
            self._thread = threading.Thread(target=self._run, args=(self._source,), name="spot-notices", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread soon. Does not wait for it."""
        self._is_closed.set()

    def _run(self, source: NoticeSource) -> None:
        while not self._is_closed.is_set():
            self._look(source)
            self._is_closed.wait(self._look_every_s)

    def _look(self, source: NoticeSource) -> None:
        try:
            notice = source.read()
        except NoticeUnreadable as error:
            if self._is_readable:
                log.warning("%s", error)
            self._is_readable = False
            return
        except Exception:  # the watch must go on, whatever an answer contains
            log.exception("A look for a notice of the provider failed. The next one tries again.")
            return
        if not self._is_readable:
            log.info("The notices of the provider can be read again.")
        if notice and not self.notice:
            log.warning("This machine is taken back: %s. Its tasks save and move.", notice)
        self.notice = notice
        self._is_readable = self.has_looked = True
