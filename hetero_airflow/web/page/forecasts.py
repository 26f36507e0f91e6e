"""When a waiting task starts: computed once for all readers, since it simulates the queue."""

import logging
import threading
from collections import OrderedDict
from datetime import datetime, timedelta

from pydantic import BaseModel

from hetero_airflow.executor.explanation.forecast import Forecast, forecast_start
from hetero_airflow.executor.explanation.live_snapshot import configured_policy
from hetero_airflow.executor.explanation.request_text import request_text
from hetero_airflow.store.store import RequestHistory
from hetero_airflow.web.fleet_reader import FleetReader

log = logging.getLogger(__name__)

FRESH_S = 15
"""A forecast serves all readers for this many seconds."""

_MAX_KEPT = 1000


class StartForecast(BaseModel):
    """When the task starts. All fields are empty for a task that does not wait."""

    made_at: datetime
    starts_now: bool = False
    low: datetime | None = None
    """With a probability of 80 %, it starts between `low` and `high`."""
    middle: datetime | None = None
    high: datetime | None = None
    not_before: datetime | None = None
    """If the queue before it is too long for a forecast."""
    unknown: list[str] = []
    """Tasks of unknown duration that it waits for; only those of DAGs that the reader may see."""
    unknown_hidden: int = 0
    """Such tasks of other DAGs."""
    change: str = ""
    """A change of the request that would start it now, in words; empty if no single one would."""
    change_text: str = ""
    """The changed arguments, to write in the DAG file."""


class Forecasts:
    """Makes one forecast at a time, and keeps the newest."""

    def __init__(self, fleet: FleetReader) -> None:
        self._fleet = fleet
        self._lock = threading.Lock()
        self._dated_forecasts: OrderedDict[str, tuple[datetime, Forecast | None]] = OrderedDict()

    def forecast(self, history: RequestHistory, readable: set[str], now: datetime) -> StartForecast:
        """The forecast for a reader of these DAGs. Blocks on the database and on the policy, for up to some seconds.

        :raises StoreUnavailable: the database is down
        """
        made_at, forecast = self._make(history, now)
        answer = StartForecast(made_at=made_at)
        if forecast is None or (forecast.start is None and forecast.change is None):
            return answer
        if forecast.start is not None:
            unknown = [".".join(name) for name in forecast.start.unknown if name[0] in readable]
            answer.unknown, answer.unknown_hidden = unknown, len(forecast.start.unknown) - len(unknown)
            answer.starts_now = forecast.starts_now
            if forecast.start.start_s is not None:
                times = (made_at + timedelta(seconds=seconds) for seconds in forecast.start.start_s)
                answer.low, answer.middle, answer.high = times
            elif forecast.start.beyond_s is not None:
                answer.not_before = made_at + timedelta(seconds=forecast.start.beyond_s)
        if forecast.change is not None:
            answer.change = forecast.change.change.description
            answer.change_text = request_text(forecast.change.change.request)
        return answer

    def _make(self, history: RequestHistory, now: datetime) -> tuple[datetime, Forecast | None]:
        with self._lock:
            cached = self._dated_forecasts.get(history.pending.id)
            if cached is not None and (now - cached[0]).total_seconds() < FRESH_S:
                return cached
            decide, period_s = configured_policy(log.warning)
            dated = now, forecast_start(history, self._fleet.snapshot_for_decisions(), decide, now, period_s)
            self._dated_forecasts[history.pending.id] = dated
            self._dated_forecasts.move_to_end(history.pending.id)
            while len(self._dated_forecasts) > _MAX_KEPT:
                self._dated_forecasts.popitem(last=False)
            return dated
