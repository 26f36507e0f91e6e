"""Services that may not answer: each call has a time limit, and after a failure there is a pause without calls.

So a silent service costs its caller one time limit in each pause, and not one for each task. With `ServiceCalls`, it
costs the caller nothing.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

from hetero_airflow.errors import shorten

log = logging.getLogger(__name__)

PAUSE_S = 5.0
"""After a call that failed, no call is made for this long."""

_FORGET_S = 60.0
"""An answer is kept for this long after its caller last asked for it."""

_MAX_KEPT = 10_000
"""The calls of one service that wait. More would mean an outage of hours."""


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

    def note_failure(self, error: BaseException, pauses: int = 1) -> None:
        """A call failed: no more calls for so many pauses. Logs a warning, unless the last one said the same."""
        text = f"{type(error).__name__}: {error}"
        if text != self._text:
            log.warning("%s does not answer: %s. %s", self._service, text, self._effect)
        self._text, self._until = text, self._now() + pauses * PAUSE_S

    def note_answer(self) -> None:
        """A call succeeded."""
        self._text, self._until = "", None


@dataclass(slots=True)
class _ServiceCall:
    make: Callable[[], Any]
    asked_at: float
    loss: str | None = None
    """What the log says if this call fails, which is made whenever the service answers; None for one with an answer."""
    answer: Future[Any] = field(default_factory=Future)


class ServiceCalls:
    """Calls to one service, one after the other in a thread of their own. Any thread may use them.

    Nothing can stop a thread whose call is not answered in time. It is left alone, and another one makes the next call
    after a pause, which doubles with each thread that still waits. So an outage of a day leaves about 15 of them.

    :param service: its name in warnings
    :param effect: what goes on while it is silent, as a sentence
    :param limit_s: most time that a call may take
    :param silences: exceptions that are no answer either; after any other one, the next call is made
    """

    def __init__(
        self,
        service: str,
        effect: str,
        limit_s: float,
        silences: tuple[type[Exception], ...] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._silences = silences
        self._service = service
        self._limit_s = limit_s
        self._now = now
        self._breaker = CircuitBreaker(service, effect, lambda: self._now())
        self._lock = threading.Lock()
        self._asked: dict[Hashable, _ServiceCall] = {}
        self._waiting: dict[Hashable, _ServiceCall] = {}
        self._thread: threading.Thread | None = None
        self._present: tuple[Hashable, _ServiceCall] | None = None
        self._begun_at = 0.0
        self._is_closed = False
        self._stuck = 0
        """How many threads wait for an answer that came too late to count."""

    def ask(self, id: Hashable, make: Callable[[], Any], patience_s: float = 0.0) -> Future[Any]:
        """The answer to a call. While it is not done, ask again with the same id; then the id is forgotten.

        It is a `TimeoutError` if the service is silent.

        :param patience_s: wait for it so long, unless an earlier call waits already
        """
        with self._lock:
            self._go_on()
            is_idle = self._present is None and not self._waiting
            if (call := self._asked.get(id)) is None:
                call = self._asked[id] = _ServiceCall(make, self._now())
                if self._is_closed or self._breaker.is_open:
                    call.answer.set_exception(TimeoutError(f"{self._service} does not answer"))
                else:
                    self._waiting[id] = call
            call.asked_at = self._now()
            self._go_on()
        if patience_s and is_idle:
            wait([call.answer], patience_s)
        if call.answer.done():
            self._asked.pop(id, None)
        return call.answer

    def keep(self, id: Hashable, make: Callable[[], Any], loss: str) -> None:
        """Make a call when the service answers, instead of one with the same id that waits.

        :param loss: what the log says if the call fails, or is never made
        """
        with self._lock:
            self._waiting[id] = _ServiceCall(make, self._now(), loss)
            if len(self._waiting) > _MAX_KEPT:
                oldest = next(id_ for id_, call in self._waiting.items() if call.loss is not None)
                log.warning("%s: too many calls wait", self._waiting.pop(oldest).loss)
            self._go_on()

    def go_on(self) -> None:
        """Look whether a call has taken too long, or those that wait may be made. The other methods do this too."""
        with self._lock:
            self._go_on()

    def close(self) -> None:
        """Make the calls that wait, if the service answers them in time. The log has those that are lost."""
        with self._lock:
            self._go_on()
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            thread.join(self._limit_s)
        with self._lock:
            if self._present is not None:
                self._note_silence()
            losses = [call.loss for call in self._waiting.values() if call.loss is not None]
            self._waiting.clear()
        if losses:
            log.warning("%s did not answer before the end: %s", self._service, shorten("; ".join(losses), 500))

    def _go_on(self) -> None:
        """Give up a call that has taken too long. Let a thread make those that wait."""
        now = self._now()
        if self._present is not None and now - self._begun_at >= self._limit_s:
            self._note_silence()
        if self._thread is None and self._waiting and not self._breaker.is_open:
            self._asked = {id_: call for id_, call in self._asked.items() if now - call.asked_at < _FORGET_S}
            self._thread = threading.Thread(target=self._run, name=f"calls to {self._service}", daemon=True)
            self._thread.start()

    def _note_silence(self) -> None:
        """Leave a thread alone that waits for an answer. What was asked has failed, and what is kept waits."""
        assert self._present is not None
        waiting = dict([self._present]) | self._waiting  # a later call with the same id replaces it
        self._thread = self._present = None
        error = TimeoutError(f"no answer within {self._limit_s:g} s")
        self._breaker.note_failure(error, 2**self._stuck)
        self._stuck += 1
        self._waiting = {id_: call for id_, call in waiting.items() if call.loss is not None}
        for call in waiting.values():
            if call.loss is None:
                call.answer.set_exception(error)

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            answer: Future[Any] = make_call(entry[1].make)
            with self._lock:
                self._take_answer(*entry, answer)

    def _next(self) -> tuple[Hashable, _ServiceCall] | None:
        """The next call of this thread; None if it is to end."""
        with self._lock:
            if self._thread is not threading.current_thread():
                return None
            if not self._waiting or self._breaker.is_open:
                self._thread = None
                return None
            id_ = next(iter(self._waiting))
            self._present, self._begun_at = (id_, self._waiting.pop(id_)), self._now()
            return self._present

    def _take_answer(self, id_: Hashable, call: _ServiceCall, answer: Future[Any]) -> None:
        error = answer.exception()
        is_late = self._thread is not threading.current_thread()
        if error is None:
            self._breaker.note_answer()
        elif isinstance(error, self._silences) and not is_late:
            self._breaker.note_failure(error)
        if is_late:
            self._stuck -= 1
            if error is None and self._waiting.get(id_) is call:
                del self._waiting[id_]
            return
        self._present = None
        if call.loss is None and error is None:
            call.answer.set_result(answer.result())
        elif call.loss is None:
            call.answer.set_exception(error)
        elif error is not None:
            log.warning("%s: %s", call.loss, error)


def make_call(make: Callable[[], Any]) -> Future[Any]:
    """What a call returns or raises."""
    answer: Future[Any] = Future()
    try:
        answer.set_result(make())
    except Exception as error:  # noqa: BLE001  services raise their libraries'
        answer.set_exception(error)
    return answer
