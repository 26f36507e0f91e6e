"""Calls to one cluster, in a thread beside the scheduler's loop, which never waits for an answer.

The calls are made one after the other. A call that must be made, such as the deletion of a pod, is repeated until the
cluster answers. Any other one is made once, and its caller decides what follows. After a call without an answer, the
cluster is left alone for a while, and for longer after each further one. After the answer that there is too much to do
(429), or that one object has an error (500), only that call waits.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

from kubernetes.client import ApiException, CoreV1Api  # type: ignore[import-untyped]
from urllib3.exceptions import HTTPError

from hetero_airflow.engines.kubernetes.clients import THREAD_CALL_LIMIT_S, close, one_try_client, probe
from hetero_airflow.engines.kubernetes.outage import Outage
from hetero_airflow.errors import shorten

Make = Callable[[CoreV1Api], Any]
OnAnswer = Callable[[Any], None]
"""Gets what a call returned, or its exception."""

FIRST_DELAY_S = 1.0
_MAX_DELAY_S = 8.0
_MAX_RETRY_AFTER_S = 300.0
"""No cluster can ask for a longer pause."""

_STOP_S = 5.0

_AWAY_STATUSES = frozenset({401, 408, 502, 503, 504})
"""HTTP statuses that concern all calls, and pass: credentials are renewed, servers come back."""

_DELAYED_STATUSES = frozenset({429, 500})
"""HTTP statuses that concern one call, and pass: too many calls of its kind, or a webhook for its object fails."""

_MAX_REMEMBERED = 10_000

log = logging.getLogger(__name__)


def is_passing(answer: Any) -> bool:
    """Whether a call got no answer that counts, so that it may be made again."""
    if isinstance(answer, ApiException):
        return answer.status in _AWAY_STATUSES or is_delayed(answer)
    return isinstance(answer, (HTTPError, OSError))


def is_delayed(answer: Any) -> bool:
    """Whether a call, and no other one, must wait before it is made again."""
    return isinstance(answer, ApiException) and answer.status in _DELAYED_STATUSES


def next_delay_s(answer: Any, last_delay_s: float, first_delay_s: float = FIRST_DELAY_S) -> float:
    """How long to wait after a call: twice as long as last time, or longer if the cluster asks for that.

    >>> next_delay_s(OSError(), 0.0), next_delay_s(OSError(), 2.0), next_delay_s(OSError(), 8.0)
    (1.0, 4.0, 8.0)
    """
    delay_s = min(max(first_delay_s, 2 * last_delay_s), _MAX_DELAY_S)
    text = (getattr(answer, "headers", None) or {}).get("Retry-After") or ""
    asked_s = float(text) if text.isascii() and text.isdigit() else 0.0  # a date is not used by API servers
    return max(delay_s, min(asked_s, _MAX_RETRY_AFTER_S))


@dataclass(frozen=True, slots=True)
class _Call:
    make: Make
    on_answer: OnAnswer | None
    is_repeated: bool
    delay_s: float = 0.0
    """How long it has last waited for its own sake."""
    due_at: float = float("-inf")


_PROBE = ("probe", _Call(probe, None, is_repeated=False))


class ClusterCalls:
    """The calls to one cluster. All methods but `stop` return at once.

    The number of waiting calls is bounded by the pods and leases of this scheduler, since each key waits once.

    :param connect: makes a client; called again after a failure
    :param delay_s: wait after a failure; doubles with each further one
    """

    def __init__(self, connect: Callable[[], CoreV1Api], outage: Outage, delay_s: float = FIRST_DELAY_S) -> None:
        self.problem: str | None = None
        """Why the last call got no answer; None if it got one."""
        self._connect, self._outage, self._first_delay_s = connect, outage, delay_s
        self._api: CoreV1Api | None = None
        self._changed = threading.Condition()
        self._waiting: dict[Hashable, _Call] = {}
        self._made_at: dict[Hashable, float] = {}
        self._answers: deque[tuple[OnAnswer, Any]] = deque()
        self._delay_s, self._retry_at, self._is_stopped = 0.0, 0.0, False
        self._faults: set[type[Exception]] = set()
        self._thread = threading.Thread(target=self._run, name="hetero calls to a cluster", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the waiting calls, if the cluster answers them in a few seconds."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def put(
        self,
        key: Hashable,
        make: Make,
        on_answer: OnAnswer | None = None,
        *,
        is_repeated: bool = False,
        again_after_s: float = 0.0,
    ) -> None:
        """Make a call soon, unless one of the key waits, or was answered less than `again_after_s` ago.

        :param on_answer: called by `handle_answers`
        :param is_repeated: make it again until the cluster answers
        """
        with self._changed:
            is_recent = time.monotonic() - self._made_at.get(key, float("-inf")) < again_after_s
            if key not in self._waiting and not is_recent:
                self._waiting[key] = _Call(make, on_answer, is_repeated)
                self._changed.notify_all()

    def handle_answers(self) -> None:
        """Pass the answers since the last time to those who wait for them. The scheduler's loop calls this."""
        while self._answers:
            on_answer, answer = self._answers.popleft()
            try:
                on_answer(answer)
            except Exception:  #  one answer must not stop the others, nor the scheduler's loop
                log.exception("The answer to a call of a cluster can't be handled")

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            try:
                self._make_call(*entry)
            except Exception as error:  # noqa: BLE001  nothing may end the thread: no other call would be made
                self._note_fault(error)
        self._disconnect()

    def _make_call(self, key: Hashable, call: _Call) -> None:
        answer = self._answer_to(call)
        if not is_passing(answer):
            self._note_answer(key, call, answer)
        elif is_delayed(answer) and key in self._waiting:
            self._delay(key, call, answer)
        else:
            self._note_silence(answer)

    def _note_fault(self, error: Exception) -> None:
        """Something unexpected was raised; one line of log for each kind."""
        if type(error) not in self._faults:
            self._faults.add(type(error))
            log.error("The calls to a cluster have a fault, and go on", exc_info=error)
        with self._changed:
            self._pause(error)

    def _next(self) -> tuple[Hashable, _Call] | None:
        """The next call, when it is time; None at the end. In an outage that is a probe."""
        with self._changed:
            while True:
                now = time.monotonic()
                entry = _PROBE if self.problem is not None else self._due_call(now)
                if self._is_stopped and (entry is None or entry is _PROBE or self._retry_at > now):
                    return None
                if entry is not None and self._retry_at <= now:
                    return entry
                due_times = [call.due_at for call in self._waiting.values()] if entry is None else [self._retry_at]
                self._changed.wait(min(due_times) - now if due_times else None)

    def _due_call(self, now: float) -> tuple[Hashable, _Call] | None:
        return next((entry for entry in self._waiting.items() if entry[1].due_at <= now), None)

    def _answer_to(self, call: _Call) -> Any:
        """What the cluster answers, or the exception."""
        try:
            if self._api is None:
                self._api = one_try_client(self._connect(), THREAD_CALL_LIMIT_S)
        except Exception as error:  # noqa: BLE001  files, credential plugins and TLS raise many types
            return ConnectionError(f"no client can be made: {error}")
        try:
            return call.make(self._api)
        except Exception as error:  # noqa: BLE001  an odd answer must not end the thread
            return error

    def _disconnect(self) -> None:
        if self._api is not None:
            close(self._api)
        self._api = None

    def _note_silence(self, error: Exception) -> None:
        """The cluster does not answer. The calls that are made once have failed."""
        self._disconnect()
        text = error_text(error)
        self._outage.note_failure("calls", text)
        with self._changed:
            self.problem = text
            self._pause(error)
            failed = {k: waiting for k, waiting in self._waiting.items() if not waiting.is_repeated}
            self._waiting = {k: waiting for k, waiting in self._waiting.items() if waiting.is_repeated}
        for waiting in failed.values():
            self._tell(waiting, error)

    def _delay(self, key: Hashable, call: _Call, answer: Exception) -> None:
        """The cluster can't make one call now. The others go on."""
        delay_s = next_delay_s(answer, call.delay_s, self._first_delay_s)
        with self._changed:
            del self._waiting[key]
            if call.is_repeated:
                self._waiting[key] = replace(call, delay_s=delay_s, due_at=time.monotonic() + delay_s)
            self._note_time(key)
        if not call.is_repeated:
            self._tell(call, answer)

    def _pause(self, error: Exception) -> None:
        self._delay_s = next_delay_s(error, self._delay_s, self._first_delay_s)
        self._retry_at = time.monotonic() + self._delay_s

    def _note_answer(self, key: Hashable, call: _Call, answer: Any) -> None:
        if call.on_answer is None and isinstance(answer, Exception) and not _is_gone(answer):
            log.warning("A cluster refused a call: %s", error_text(answer))
        with self._changed:
            self.problem = None
            if self._waiting.pop(key, None) is not None:  # no probe
                self._delay_s = 0.0
            self._note_time(key)
        self._outage.note_answer("calls")
        self._tell(call, answer)

    def _note_time(self, key: Hashable) -> None:
        self._made_at[key] = time.monotonic()
        if len(self._made_at) > _MAX_REMEMBERED:
            del self._made_at[next(iter(self._made_at))]

    def _tell(self, call: _Call, answer: Any) -> None:
        if call.on_answer is not None:
            self._answers.append((call.on_answer, answer))


def error_text(error: Exception) -> str:
    """One short line about a failed call."""
    if isinstance(error, ApiException):
        return f"{error.status} {error.reason}"
    return f"{type(error).__name__}: {shorten(str(error), 200)}"


def _is_gone(answer: Exception) -> bool:
    """Whether the object of a call is gone, or another one has its name."""
    return isinstance(answer, ApiException) and answer.status in (404, 409)
