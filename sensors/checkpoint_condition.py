"""The condition on a checkpoint that a sensor waits for. Pure: the caller passes the time."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hetero_airflow.checkpoints.index import CheckpointEntry, Index
from hetero_airflow.errors import RequestError
from hetero_airflow.units import parse_duration_s


@dataclass(frozen=True, slots=True)
class CheckpointCondition:
    """One checkpoint must meet all given parts.

    >>> CheckpointCondition.parse(step=100, metric="accuracy", above=0.9).to_json()
    {'step': 100, 'metric': 'accuracy', 'above': 0.9}
    """

    step: int | None = None
    """Least step."""
    metric: str | None = None
    above: float | None = None
    below: float | None = None
    younger_than_s: float | None = None
    """Published less than this many seconds ago."""
    complete: bool = False
    """Only the final checkpoint of the task."""

    @classmethod
    def parse(
        cls,
        *,
        step: object = None,
        metric: object = None,
        above: object = None,
        below: object = None,
        younger_than: object = None,
        complete: object = False,
    ) -> "CheckpointCondition":
        """The condition in a sensor's arguments.

        :raises RequestError: no argument is given, or no checkpoint could ever meet them
        """
        if step is not None and (not isinstance(step, int) or isinstance(step, bool) or step < 0):
            raise RequestError("step", step, found="no step number", remedy="Give a whole number, 0 or more")
        if not isinstance(complete, bool):
            raise RequestError("complete", complete, found="neither True nor False", remedy="Give True or False")
        bounds = {name: _bound(name, value) for name, value in (("above", above), ("below", below))}
        _check_metric(metric, bounds)
        if step is None and metric is None and younger_than is None and not complete:
            raise RequestError(
                "step",
                None,
                found="nothing to wait for",
                remedy="Give step, metric with above or below, younger_than, or complete; step=0 means any checkpoint",
            )
        age_s = None if younger_than is None else parse_duration_s(younger_than, "younger_than")
        return cls(step, metric, bounds["above"], bounds["below"], age_s, complete)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """The given parts as plain values, which are the arguments of an equal condition."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    def met_in(self, index: Index, now: datetime) -> CheckpointEntry | None:
        """The newest checkpoint of the index that meets the condition; None if none does."""
        return next((entry for entry in reversed(tuple(index.current)) if self._holds(entry, now)), None)

    def _holds(self, entry: CheckpointEntry, now: datetime) -> bool:
        value = entry.metrics.get(self.metric) if self.metric is not None else None
        return (
            (self.step is None or entry.step >= self.step)
            and (self.metric is None or value is not None)
            and (self.above is None or (value is not None and value > self.above))
            and (self.below is None or (value is not None and value < self.below))
            and (self.younger_than_s is None or now - entry.published_at < timedelta(seconds=self.younger_than_s))
            and (entry.is_final or not self.complete)
        )

    def __str__(self) -> str:
        parts = [f"step >= {self.step}"] if self.step is not None else []
        parts += [f"{self.metric} > {self.above:g}"] if self.above is not None else []
        parts += [f"{self.metric} < {self.below:g}"] if self.below is not None else []
        parts += [f"younger than {self.younger_than_s:g} s"] if self.younger_than_s is not None else []
        parts += ["complete"] if self.complete else []
        return ", ".join(parts)


def _bound(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RequestError(name, value, found="no finite number", remedy=f"Give a number, as in {name}=0.9")
    return float(value)


def _check_metric(metric: object, bounds: dict[str, float | None]) -> None:
    given = [name for name, value in bounds.items() if value is not None]
    if given and (not isinstance(metric, str) or not metric):
        raise RequestError("metric", metric, found=f"{given[0]} without a metric", remedy='Name it: metric="loss"')
    if metric is not None and not given:
        raise RequestError("metric", metric, found="no bound for it", remedy="Also give above or below")
    above, below = bounds["above"], bounds["below"]
    if above is not None and below is not None and above >= below:
        raise RequestError(
            "above", above, found=f"below={below:g}, so no value is in between", remedy="Give a smaller above"
        )
