"""How often a loop saves: after a number of steps, or after a duration."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from hetero_airflow.errors import RequestError
from hetero_airflow.units import parse_duration_s

MAX_STEPS = 10**12
"""The key of a checkpoint has twelve digits for the step."""


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """A number of steps or a duration; exactly one is not None.

    >>> SaveInterval.parse("5m"), SaveInterval.parse(100)
    (SaveInterval(steps=None, seconds=300.0), SaveInterval(steps=100, seconds=None))
    """

    steps: int | None
    seconds: float | None

    @classmethod
    def parse(cls, value: object) -> SaveInterval:
        """Read a number of steps, a duration such as ``"5m"``, or a timedelta.

        :raises RequestError: another type, or a value that is zero, negative or too large
        """
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 < value < MAX_STEPS:
                raise RequestError(
                    "every", value, found="a number of steps out of range", remedy="Use 1 or more, or a duration"
                )
            return cls(value, None)
        if not isinstance(value, (str, timedelta)):
            raise RequestError(
                "every",
                value,
                found=f"a {type(value).__name__}",
                remedy='Write a duration such as "5m", or a whole number of steps',
            )
        return cls(None, parse_duration_s(value, "every"))

    def is_due(self, step: int, since_s: float) -> bool:
        """Whether to save after this step (counted from 0), `since_s` seconds after the last save.

        >>> SaveInterval.parse(100).is_due(99, since_s=0), SaveInterval.parse("5m").is_due(99, since_s=299)
        (True, False)
        """
        if self.steps is not None:
            return (step + 1) % self.steps == 0
        assert self.seconds is not None
        return since_s >= self.seconds
