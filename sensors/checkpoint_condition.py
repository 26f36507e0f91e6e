"""What a sensor waits for in a checkpoint. Pure: the time is passed in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hetero_airflow.checkpoints.index import CheckpointEntry, Index
from hetero_airflow.errors import RequestError
from hetero_airflow.units import parse_duration_s


@dataclass(frozen=True, slots=True)
class CheckpointCondition:
    """All that is given must hold of one and the same checkpoint.

    >>> CheckpointCondition.parse(step=100, metric="accuracy", above=0.9).to_json()
    {'step': 100, 'metric': 'accuracy', 'above': 0.9}
    """

    step: int | None = None
    """At least."""
    metric: str | None = None
    above: float | None = None
    below: float | None = None
    younger_than_s: float | None = None
    """Published less than so many seconds before it is looked at."""
    complete: bool = False
    """The last one: the task's work was done."""

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
    ) -> CheckpointCondition:
        """The condition that a sensor's arguments make.

        :raises RequestError: none is given, or no checkpoint could ever meet them
        """
        if step is not None and (not isinstance(step, int) or isinstance(step, bool) or step < 0):
            raise RequestError("step", step, found="no step", remedy="Give a whole number from 0 on")
        if not isinstance(complete, bool):
            raise RequestError("complete", complete, found="neither True nor False", remedy="Give one of them")
        bounds = {name: _bound(name, value) for name, value in (("above", above), ("below", below))}
        _check_metric(metric, bounds)
        if step is None and metric is None and younger_than is None and not complete:
            raise RequestError(
                "step",
                None,
                found="nothing to wait for",
                remedy="Give step, metric with above or below, younger_than or complete; step=0 is any checkpoint",
            )
        age_s = None if younger_than is None else parse_duration_s(younger_than, "younger_than")
        return cls(step, metric, bounds["above"], bounds["below"], age_s, complete)  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CheckpointCondition:
        """What `to_json` made of a condition."""
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Plain values, without those that are not given."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    def met_in(self, index: Index, now: datetime) -> CheckpointEntry | None:
        """The newest checkpoint of the index that meets it; None if none does."""
        return self._newest(index.current, now)

    def _newest(self, entries: Iterable[CheckpointEntry], now: datetime) -> CheckpointEntry | None:
        return next((entry for entry in reversed(tuple(entries)) if self._holds(entry, now)), None)

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
        words = [f"step >= {self.step}"] if self.step is not None else []
        words += [f"{self.metric} > {self.above:g}"] if self.above is not None else []
        words += [f"{self.metric} < {self.below:g}"] if self.below is not None else []
        words += [f"younger than {self.younger_than_s:g} s"] if self.younger_than_s is not None else []
        words += ["complete"] if self.complete else []
        return ", ".join(words)


def _bound(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RequestError(name, value, found="no finite number", remedy=f"Give one, as in {name}=0.9")
    return float(value)


def _check_metric(metric: object, bounds: dict[str, float | None]) -> None:
    given = [name for name, value in bounds.items() if value is not None]
    if given and (not isinstance(metric, str) or not metric):
        raise RequestError("metric", metric, found=f"{given[0]} without a metric", remedy='Say which: metric="loss"')
    if metric is not None and not given:
        raise RequestError("metric", metric, found="no bound for it", remedy="Give above or below as well")
    above, below = bounds["above"], bounds["below"]
    if above is not None and below is not None and above >= below:
        raise RequestError(
            "above", above, found=f"below={below:g}, which leaves nothing between", remedy="Give a smaller above"
        )
