"""Watches whether Airflow's Execution API answers, in a thread beside the scheduler's loop."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import httpx
from airflow.sdk.api.client import Client

from hetero_airflow.clock import Clock
from hetero_airflow.contract.execution_api import find_problem
from hetero_airflow.model.heartbeat import SERVER_HEARTBEAT_S, ServerHeartbeat
from hetero_airflow.model.plan import Reason, ReasonCode

log = logging.getLogger(__name__)

_PERIOD_S = 2.0
_TIMEOUT_S = 5.0
"""As workers have it by default, [workers] execution_api_timeout."""

_MIN_FAILURES = 2
"""A single request may fail, as when one of several servers restarts."""


_SILENT_AFTER = timedelta(seconds=4 * SERVER_HEARTBEAT_S)
"""So long after the last heartbeat of an API server, none is there."""


@dataclass(frozen=True, slots=True)
class ApiOutage:
    """The API server does not answer."""

    since: datetime
    problem: str
    """What the first failed request met."""
    failures: int = 1


class ExecutionApiWatch:
    """Asks every few seconds. All its properties are what the last requests found; none of them blocks.

    A scheduler may start during an outage, so until the first request is over, the server counts as away. An address
    that has not answered yet may be valid on the workers only: then `is_expected` decides what its silence means.

    :param find_problem: asks once; returns why there is no answer, or None
    :param is_expected: whether a server that is there would answer a request from here, or none is there
    """

    def __init__(
        self, find_problem: Callable[[], str | None], clock: Clock, is_expected: Callable[[], bool] = lambda: True
    ) -> None:
        self._find_problem = find_problem
        self._clock = clock
        self._is_expected = is_expected
        self._has_answered = False
        self._failing: ApiOutage | None = ApiOutage(clock.now(), "the scheduler has just started", _MIN_FAILURES)
        self._failed_at: datetime | None = None
        self._is_logged = False
        self._closed = threading.Event()

    @classmethod
    def of_server(
        cls, url: str, clock: Clock, *, is_local: bool, last_heartbeat: Callable[[], ServerHeartbeat | None]
    ) -> "ExecutionApiWatch":
        """A watch of the Execution API at an address.

        :param is_local: tasks run on this host, with the same address
        :param last_heartbeat: reads the last heartbeat of any API server; None if no server has ever sent one
        """
        no_reuse = httpx.Limits(max_keepalive_connections=0)  # a connection would live on in forked processes

        def ask() -> str | None:
            with Client(base_url=url, token="", limits=no_reuse, timeout=_TIMEOUT_S) as client:
                return find_problem(client)

        def is_expected() -> bool:
            heartbeat = None if is_local else last_heartbeat()
            return is_local or (heartbeat is not None and clock.now() - heartbeat.at > _SILENT_AFTER)

        return cls(ask, clock, is_expected)

    def start(self) -> None:
        """Begin to ask."""
        threading.Thread(target=self._ask_until_closed, name="execution-api-watch", daemon=True).start()

    def close(self) -> None:
        """Ask no more. Does not wait for the answer to the last request."""
        self._closed.set()

    @property
    def outage(self) -> ApiOutage | None:
        """The present outage; None if the server answers, or if it can't be asked from here."""
        failing = self._failing
        return failing if failing is not None and failing.failures >= _MIN_FAILURES else None

    def has_failed_since(self, at: datetime) -> bool:
        """Whether a request has failed since then. False if the server can't be asked from here."""
        return self._failed_at is not None and self._failed_at >= at

    def placement_obstacle(self) -> Reason | None:
        """Why no task may be placed now; None if tasks may be placed."""
        outage = self.outage
        if outage is None:
            return None
        found = f"no answer since {outage.since:%Y-%m-%d %H:%M:%S} UTC ({outage.problem})"
        return Reason(ReasonCode.API_SERVER, "an answer of Airflow's API server", found)

    def ask(self) -> None:
        """Ask once. The thread does this."""
        try:
            problem = self._find_problem()
            is_outage = problem is not None and (self._has_answered or self._is_expected())
        except Exception as error:  # noqa: BLE001  the thread must go on, whatever the client or the database raises
            problem, is_outage = f"{type(error).__name__}: {error}", True
        if problem is None:
            self._has_answered = True
        if problem is not None and is_outage:
            self._note_failure(problem)
        else:
            self._failing = None
        self._log_change()

    def _note_failure(self, problem: str) -> None:
        now, outage = self._clock.now(), self._failing
        if outage is None:
            self._failing = ApiOutage(now, problem)
        elif self._failed_at is None:
            self._failing = replace(outage, problem=problem)
        else:
            self._failing = replace(outage, failures=outage.failures + 1)
        self._failed_at = now

    def _log_change(self) -> None:
        outage, was_logged = self.outage, self._is_logged
        self._is_logged = outage is not None
        if outage is not None and not was_logged:
            log.warning(
                "Airflow's API server does not answer: %s. No task starts until it does. Running ones go on.",
                outage.problem,
            )
        elif was_logged and outage is None:
            log.info("Airflow's API server answers again. Tasks start again.")

    def _ask_until_closed(self) -> None:
        while not self._closed.is_set():
            self.ask()
            self._closed.wait(_PERIOD_S)
