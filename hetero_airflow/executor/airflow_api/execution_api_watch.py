"""Watches whether Airflow's Execution API answers, in a thread beside the scheduler's loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import httpx
from airflow.sdk.api.client import Client

from hetero_airflow.clock import Clock
from hetero_airflow.contract.execution_api import find_problem
from hetero_airflow.model.plan import Reason, ReasonCode

log = logging.getLogger(__name__)

_PERIOD_S = 2.0
_TIMEOUT_S = 5.0
"""As workers have it by default, [workers] execution_api_timeout."""

_MIN_FAILURES = 2
"""A single request may fail, as when one of several servers restarts."""


@dataclass(frozen=True, slots=True)
class ApiOutage:
    """The API server answered before, and does not answer now."""

    since: datetime
    problem: str
    """What the first failed request met."""
    failures: int = 1


class ExecutionApiWatch:
    """Asks every few seconds. All its properties are what the last requests found; none of them blocks.

    Until the server has answered once, no outage is known: its address may be valid on the workers only, and a
    scheduler may start during an outage.

    :param find_problem: asks once; returns why there is no answer, or None
    """

    def __init__(self, find_problem: Callable[[], str | None], clock: Clock) -> None:
        self._find_problem = find_problem
        self._clock = clock
        self._has_answered = False
        self._failing: ApiOutage | None = None
        self._failed_at: datetime | None = None
        self._closed = threading.Event()

    @classmethod
    def of_server(cls, url: str, clock: Clock) -> ExecutionApiWatch:
        """A watch of the Execution API at an address."""
        no_reuse = httpx.Limits(max_keepalive_connections=0)  # a connection would live on in forked processes

        def ask() -> str | None:
            with Client(base_url=url, token="", limits=no_reuse, timeout=_TIMEOUT_S) as client:
                return find_problem(client)

        return cls(ask, clock)

    def start(self) -> None:
        """Begin to ask."""
        threading.Thread(target=self._ask_until_closed, name="execution-api-watch", daemon=True).start()

    def close(self) -> None:
        """Ask no more. Does not wait for the answer to the last request."""
        self._closed.set()

    @property
    def outage(self) -> ApiOutage | None:
        """The present outage; None if the server answers, or if it is not known whether it does."""
        failing = self._failing
        return failing if failing is not None and failing.failures >= _MIN_FAILURES else None

    def has_failed_since(self, at: datetime) -> bool:
        """Whether a request has failed since then. False if the server has never answered."""
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
        except Exception as error:  # noqa: BLE001  the thread must go on, whatever the client raises
            problem = f"{type(error).__name__}: {error}"
        was_away = self.outage is not None
        if problem is None:
            self._has_answered, self._failing = True, None
        elif self._has_answered:
            self._note_failure(problem)
        is_away = self.outage is not None
        if is_away and not was_away:
            log.warning(
                "Airflow's API server does not answer: %s. No device task is placed until it does. Running ones go on.",
                problem,
            )
        elif was_away and not is_away:
            log.info("Airflow's API server answers again. Device tasks are placed again.")

    def _note_failure(self, problem: str) -> None:
        self._failed_at = now = self._clock.now()
        before = self._failing
        if before is None:
            self._failing = ApiOutage(now, problem)
        else:
            self._failing = ApiOutage(before.since, before.problem, before.failures + 1)

    def _ask_until_closed(self) -> None:
        while not self._closed.is_set():
            self.ask()
            self._closed.wait(_PERIOD_S)
