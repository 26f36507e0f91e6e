"""What ``airflow hetero explain`` says of a task's speeds. Pure."""

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hetero_airflow.model.estimates import Estimates, TaskName
from hetero_airflow.model.run import MeasuredSpeed

_FAR = math.log(1.5)
"""A measurement that counts as another speed than it says, by this factor or more, is shown as such."""


@dataclass(frozen=True, slots=True)
class ClassSpeed:
    """The speed of a task that reports its steps, on one device class."""

    device_class: str
    steps_per_s: float
    """As policies use it."""
    deviation: float
    """Its standard error as a part of it; of a class that was not tried, relative to the fastest measured one."""
    relative: float
    """Part of the speed on the fastest of these classes."""
    steps: int
    """Steps that the task did on such devices; 0 if it was not measured there."""
    reported_steps_per_s: float | None
    """What the task reported; None if it was not measured there."""


def class_speeds(
    task: TaskName, estimates: Estimates, measured: Iterable[MeasuredSpeed], classes: Collection[str]
) -> tuple[ClassSpeed, ...]:
    """The speeds on the classes on which the task was measured, and on the given ones; the fastest first.

    It is empty for a task that reports no steps.
    """
    reported = {speed.device_class: speed for speed in measured if speed.task == task}
    deviations = estimates.speed_deviations.get(task, {})
    names = (deviations.keys() & {*classes}) | (reported.keys() & deviations.keys())
    speeds = {name: estimates.speed(task, name) or 0.0 for name in names}
    fastest = max(speeds.values(), default=0.0)
    found = (
        ClassSpeed(
            name,
            speeds[name],
            reported[name].deviation if name in reported else deviations[name],
            speeds[name] / fastest if fastest else 1.0,
            reported[name].steps if name in reported else 0,
            math.exp(reported[name].log_speed) if name in reported else None,
        )
        for name in names
    )
    return tuple(sorted(found, key=lambda speed: (-speed.steps_per_s, speed.device_class)))


def speed_lines(speeds: Iterable[ClassSpeed]) -> Iterator[str]:
    """The speeds for people.

    >>> measured = ClassSpeed("nvidia/t4", 2.1, 0.048, 1.0, 240, 2.1)
    >>> [line] = speed_lines([measured])
    >>> line
    'nvidia/t4: learned from 240 steps on this device: 2.1 ± 0.1 steps/s'
    """
    for speed in speeds:
        part = "" if speed.relative == 1.0 else f", {speed.relative:.2g} of the fastest"
        if speed.reported_steps_per_s is None:
            low, high = (speed.steps_per_s * math.exp(side * speed.deviation) for side in (-1, 1))
            text = f"not tried yet: {_number(low)} to {_number(high)} steps/s by other tasks and the data sheets"
        else:
            error = speed.deviation * speed.reported_steps_per_s
            text = (
                f"learned from {speed.steps:,} steps on this device: {_with_error(speed.reported_steps_per_s, error)}"
            )
            if abs(math.log(speed.reported_steps_per_s / speed.steps_per_s)) >= _FAR:
                text += f"; it counts as {_number(speed.steps_per_s)}, since other tasks show nothing like it"
        yield f"{speed.device_class}: {text}{part}"


def speeds_json(speeds: Iterable[ClassSpeed]) -> dict[str, Any]:
    """The speeds as JSON values."""
    return {"speeds": [asdict(speed) for speed in speeds]}


def _with_error(value: float, error: float) -> str:
    """A speed with its error, which has one digit.

    >>> _with_error(2.13, 0.1), _with_error(1234.0, 31.0), _with_error(0.021, 0.0002)
    ('2.1 ± 0.1 steps/s', '1,230 ± 30 steps/s', '0.0210 ± 0.0002 steps/s')
    """
    digits = -math.floor(math.log10(max(error, value / 1000)))
    return f"{round(value, digits):,.{max(digits, 0)}f} ± {round(error, digits):,.{max(digits, 0)}f} steps/s"


def _number(value: float) -> str:
    """Two digits that count.

    >>> _number(1234.0), _number(0.0123)
    ('1,200', '0.012')
    """
    digits = 1 - math.floor(math.log10(value))
    return f"{round(value, digits):,.{max(digits, 0)}f}"
