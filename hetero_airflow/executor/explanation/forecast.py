"""The forecast for a request: its start, and a change that would start it now. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime

from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.scheduling.advice.start_estimate import Decide, StartEstimate, estimate_start
from hetero_airflow.scheduling.advice.what_if import CheapestChange, cheapest_change
from hetero_airflow.store.store import RequestHistory


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast for one request."""

    start: StartEstimate | None
    """None for a request that was refused."""
    change: CheapestChange | None
    """A change that would start it now. None if no single change does, or if it starts now without a change."""

    @property
    def starts_now(self) -> bool:
        """Whether the scheduler's next cycle starts it."""
        return self.start is not None and self.start.start_s is not None and self.start.start_s.high <= 0


def forecast_start(
    history: RequestHistory, snapshot: Snapshot, decide: Decide, now: datetime, period_s: float | None
) -> Forecast | None:
    """The forecast for a request that waits or was refused; None for any other, and for a paused one."""
    pending, newest = history.pending, history.decisions[0] if history.decisions else None
    if pending.is_paused:
        return None
    if any(request.id == pending.id for request in snapshot.pending):
        forecast = Forecast(estimate_start(snapshot, pending.id, decide, now, period_s), None)
    elif history.state == "ended" and newest is not None and newest["outcome"] == "refuse":
        forecast = Forecast(None, None)
    else:
        return None
    if forecast.starts_now:
        return forecast
    return replace(forecast, change=cheapest_change(snapshot, pending, decide, now))
