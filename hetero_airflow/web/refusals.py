"""Requests that are refused: what they are answered, how often that is logged, and who has to wait."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from time import monotonic

from fastapi import Request
from fastapi.responses import JSONResponse

from hetero_airflow.agent.protocol import RefusalCode
from hetero_airflow.agent.tokens import TokenRefused
from hetero_airflow.errors import HeteroError, IdentityError, StoreUnavailable, shorten

log = logging.getLogger(__name__)

STATUS: dict[RefusalCode, int] = {
    RefusalCode.UNAUTHENTICATED: 401,
    RefusalCode.EXPIRED: 401,
    RefusalCode.UNKNOWN_KEY: 401,
    RefusalCode.FOREIGN: 403,
    RefusalCode.ENROLMENT: 403,
    RefusalCode.REPLAYED: 409,
    RefusalCode.SUPERSEDED: 409,
    RefusalCode.TOO_LARGE: 413,
    RefusalCode.INVALID: 422,
    RefusalCode.FLOODING: 429,
    RefusalCode.UNAVAILABLE: 503,
}
"""Code → HTTP status."""

RETRY_AFTER_S = {RefusalCode.FLOODING: 60, RefusalCode.UNAVAILABLE: 5}

_UNAVAILABLE = HeteroError("a request", found="a database that does not answer now", remedy="Try again later")
"""What is told instead of a database's own words, which are for the log."""

_PERIOD_S = 60.0
_MAX_BAD_BODIES = 20
"""Of one worker in a period."""
_MAX_KNOWN = 1000


class RequestRefused(HeteroError):
    """A request that is not taken; `code` says why, `worker` who asked, as far as that is certain."""

    def __init__(self, code: RefusalCode, asked: str, *, found: str, remedy: str, worker: str = "") -> None:
        self.code, self.worker = code, worker
        super().__init__(asked, found=found, remedy=remedy)


class RefusalLog:
    """Counts refusals for a minute at a time, so that neither the log nor the parser can be flooded.

    :param clock: seconds that only grow
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._logged: OrderedDict[tuple[str, RefusalCode], int] = OrderedDict()
        """(who, why) → how often, in this period; what is oldest is forgotten first."""
        self._bad_bodies: Counter[str] = Counter()

    def note(self, worker: str, code: RefusalCode, text: str) -> None:
        """Log the first of a kind in each minute; a worker that nobody has proved is ``""``."""
        self._turn()
        key = (worker, code)
        self._logged[key] = self._logged.get(key, 0) + 1
        if self._logged[key] == 1:
            who = f"worker {shorten(worker)}" if worker else "someone unknown"
            log.warning("Refused a request of %s as %s: %s", who, code, shorten(text, 400))
        while len(self._logged) > _MAX_KNOWN:
            self._logged.popitem(last=False)
        if code in (RefusalCode.INVALID, RefusalCode.TOO_LARGE) and worker:
            self._bad_bodies[worker] += 1

    def check_flooding(self, worker: str) -> None:
        """Whether a worker may send another body.

        :raises Refused: it has sent too many that can't be read
        """
        self._turn()
        if self._bad_bodies[worker] >= _MAX_BAD_BODIES:
            raise RequestRefused(
                RefusalCode.FLOODING,
                "a request of a worker's agent",
                found=f"{self._bad_bodies[worker]} bodies in a minute that could not be read",
                remedy="Run the agent and the API server with one version of hetero-airflow",
                worker=worker,
            )

    def _turn(self) -> None:
        if self._clock() - self._since < _PERIOD_S:
            return
        for (worker, code), times in self._logged.items():
            if times > 1:
                who = f"worker {shorten(worker)}" if worker else "someone unknown"
                log.warning("Refused %s requests of %s as %s within %.0f s.", times, who, code, _PERIOD_S)
        self._logged.clear()
        self._bad_bodies.clear()
        self._since = self._clock()


def answer_refusal(refusals: RefusalLog, error: HeteroError) -> JSONResponse:
    """The answer to a request that failed with one of our errors: the three parts of its text, and a code."""
    code, worker = _code(error), getattr(error, "worker", "")
    refusals.note(worker, code, str(error))
    headers = {"Retry-After": str(RETRY_AFTER_S[code])} if code in RETRY_AFTER_S else {}
    if STATUS[code] == 401:
        headers["WWW-Authenticate"] = "Bearer"
    told = _UNAVAILABLE if code is RefusalCode.UNAVAILABLE else error
    body = {"code": code, "asked": told.asked, "found": told.found, "remedy": told.remedy}
    return JSONResponse(body, STATUS[code], headers)


def refusal_handler(refusals: RefusalLog) -> Callable[[Request, Exception], JSONResponse]:
    """As FastAPI takes it, for `HeteroError`."""

    def handle(_request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, HeteroError):
            raise error
        return answer_refusal(refusals, error)

    return handle


def _code(error: HeteroError) -> RefusalCode:
    if isinstance(error, (RequestRefused, TokenRefused)):
        return error.code
    if isinstance(error, IdentityError):
        return RefusalCode.ENROLMENT
    if isinstance(error, StoreUnavailable):
        return RefusalCode.UNAVAILABLE
    raise error
