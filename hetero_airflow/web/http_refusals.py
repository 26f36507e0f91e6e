"""Refused requests: their answers, a limit for their log lines, and a limit for invalid bodies."""

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
"""The answer instead of the text of a database error, which only the log gets."""

_PERIOD_S = 60.0
_MAX_BAD_BODIES = 20
"""Of one worker per period."""
_MAX_KNOWN = 1000


class HttpRequestRefused(HeteroError):
    """A refused request; `code` says why, `worker` is the verified worker or empty."""

    def __init__(self, code: RefusalCode, asked: str, *, found: str, remedy: str, worker: str = "") -> None:
        self.code, self.worker = code, worker
        super().__init__(asked, found=found, remedy=remedy)


class RefusalLog:
    """Counts refusals per minute, so that no client can flood the log or the parser.

    :param clock: seconds that only grow
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._logged: OrderedDict[tuple[str, RefusalCode], int] = OrderedDict()
        """(worker, code) → number of refusals in this period; the oldest entry is dropped first."""
        self._bad_bodies: Counter[str] = Counter()

    def note(self, worker: str, code: RefusalCode, text: str) -> None:
        """Log the first refusal of a kind in each minute. The worker is ``""`` if it is not verified."""
        self._start_period()
        key = (worker, code)
        self._logged[key] = self._logged.get(key, 0) + 1
        if self._logged[key] == 1:
            log.warning("Refused a request of %s as %s: %s", _client(worker), code, shorten(text, 400))
        while len(self._logged) > _MAX_KNOWN:
            self._logged.popitem(last=False)
        if code in (RefusalCode.INVALID, RefusalCode.TOO_LARGE) and worker:
            self._bad_bodies[worker] += 1

    def check_flooding(self, worker: str) -> None:
        """Refuse a worker that sends too many invalid bodies.

        :raises HttpRequestRefused: the worker reached the limit of this period
        """
        self._start_period()
        if self._bad_bodies[worker] >= _MAX_BAD_BODIES:
            raise HttpRequestRefused(
                RefusalCode.FLOODING,
                "a request of a worker's agent",
                found=f"{self._bad_bodies[worker]} invalid bodies in a minute",
                remedy="Run the agent and the API server with one version of hetero-airflow",
                worker=worker,
            )

    def _start_period(self) -> None:
        if self._clock() - self._since < _PERIOD_S:
            return
        for (worker, code), times in self._logged.items():
            if times > 1:
                log.warning("Refused %s requests of %s as %s within %.0f s.", times, _client(worker), code, _PERIOD_S)
        self._logged.clear()
        self._bad_bodies.clear()
        self._since = self._clock()


def refusal_handler(refusals: RefusalLog) -> Callable[[Request, Exception], JSONResponse]:
    """FastAPI's handler for `HeteroError`: it answers with the code and the three parts of the text."""

    def handle(_request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, HeteroError):
            raise error
        code, worker = _code(error), getattr(error, "worker", "")
        refusals.note(worker, code, str(error))
        headers = {"Retry-After": str(RETRY_AFTER_S[code])} if code in RETRY_AFTER_S else {}
        if STATUS[code] == 401:
            headers["WWW-Authenticate"] = "Bearer"
        public = _UNAVAILABLE if code is RefusalCode.UNAVAILABLE else error
        body = {"code": code, "asked": public.asked, "found": public.found, "remedy": public.remedy}
        return JSONResponse(body, STATUS[code], headers)

    return handle


def _code(error: HeteroError) -> RefusalCode:
    if isinstance(error, (HttpRequestRefused, TokenRefused)):
        return error.code
    if isinstance(error, IdentityError):
        return RefusalCode.ENROLMENT
    if isinstance(error, StoreUnavailable):
        return RefusalCode.UNAVAILABLE
    raise error


def _client(worker: str) -> str:
    return f"worker {shorten(worker)}" if worker else "an unknown client"
