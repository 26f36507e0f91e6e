"""Calls to one cluster, in a thread beside the scheduler's loop, which never waits for an answer.

The calls are made one after the other. A call that must be made, such as the deletion of a pod, is repeated until the
cluster answers. Any other one is made once, and its caller decides what follows. After a call without an answer, the
cluster is left alone for a while, and for longer after each further one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from kubernetes.client import ApiException, CoreV1Api  # type: ignore[import-untyped]
from urllib3.exceptions import HTTPError

from hetero_airflow.engines.kubernetes.clients import THREAD_CALL_LIMIT_S, close, limited_client, probe
from hetero_airflow.engines.kubernetes.outage import Outage
from hetero_airflow.errors import shorten

Make = Callable[[CoreV1Api], Any]
OnAnswer = Callable[[Any], None]
"""Gets what a call returned, or its exception."""

_MAX_DELAY_S = 8.0

_STOP_S = 5.0

_AWAY_STATUSES = frozenset({401, 408, 429, 502, 503, 504})
"""HTTP statuses that concern all calls, and pass: credentials are renewed, servers come back."""

_MAX_REMEMBERED = 10_000

log = logging.getLogger(__name__)


def is_passing(answer: Any) -> bool:
    """Whether a call got no answer that counts, so that it may be made again."""
    if isinstance(answer, ApiException):
        return answer.status == 500 or answer.status in _AWAY_STATUSES  # 500: a webhook for its object, or an error
    return isinstance(answer, (HTTPError, OSError))


@dataclass(frozen=True, slots=True)
class _Call:
    make: Make
    on_answer: OnAnswer | None
    is_repeated: bool


_PROBE = ("probe", _Call(probe, None, is_repeated=False))


class ClusterCalls:
    """The calls to one cluster. All methods but `stop` return at once.

    The number of waiting calls is bounded by the pods and leases of this scheduler, since each key waits once.

    :param connect: makes a client; called again after a failure
    :param delay_s: wait after a failure; doubles with each further one
    """

    def __init__(self, connect: Callable[[], CoreV1Api], outage: Outage, delay_s: float = 1.0) -> None:
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
        elif getattr(answer, "status", None) == 500 and key in self._waiting:
            self._note_error(key, call, answer)
        else:
            self._note_silence(answer)

    def _note_fault(self, error: Exception) -> None:
        """Something unexpected was raised; one line of log for each kind."""
        if type(error) not in self._faults:
            self._faults.add(type(error))
            log.error("The calls to a cluster have a fault, and go on", exc_info=error)
        with self._changed:
            self._pause()

    def _next(self) -> tuple[Hashable, _Call] | None:
        """The next call, when it is time; None at the end. In an outage that is a probe."""
        with self._changed:
            while True:
                left_s = self._retry_at - time.monotonic()
                if self._is_stopped and (not self._waiting or left_s > 0 or self.problem is not None):
                    return None
                if left_s <= 0 and self.problem is not None:
                    return _PROBE
                if left_s <= 0 and self._waiting:
                    return next(iter(self._waiting.items()))
                self._changed.wait(left_s if left_s > 0 else None)

    def _answer_to(self, call: _Call) -> Any:
        """What the cluster answers, or the exception."""
        try:
            if self._api is None:
                self._api = limited_client(self._connect(), THREAD_CALL_LIMIT_S)
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
            self._pause()
            failed = {k: waiting for k, waiting in self._waiting.items() if not waiting.is_repeated}
            self._waiting = {k: waiting for k, waiting in self._waiting.items() if waiting.is_repeated}
        for waiting in failed.values():
            self._tell(waiting, error)

    def _note_error(self, key: Hashable, call: _Call, error: Exception) -> None:
        """The cluster has an error with one object, which must not stop the calls for others."""
        with self._changed:
            self._pause()
            del self._waiting[key]
            if call.is_repeated:
                self._waiting[key] = call
        if not call.is_repeated:
            self._tell(call, error)

    def _pause(self) -> None:
        self._delay_s = min(max(self._first_delay_s, 2 * self._delay_s), _MAX_DELAY_S)
        self._retry_at = time.monotonic() + self._delay_s

    def _note_answer(self, key: Hashable, call: _Call, answer: Any) -> None:
        if call.on_answer is None and isinstance(answer, Exception) and not _is_gone(answer):
            log.warning("A cluster refused a call: %s", error_text(answer))
        with self._changed:
            self.problem = None
            if self._waiting.pop(key, None) is not None:  # no probe
                self._delay_s = 0.0
            self._made_at[key] = time.monotonic()
            if len(self._made_at) > _MAX_REMEMBERED:
                del self._made_at[next(iter(self._made_at))]
        self._outage.note_answer("calls")
        self._tell(call, answer)

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
