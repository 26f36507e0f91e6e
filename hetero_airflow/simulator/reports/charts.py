"""Charts of simulations as SVG: utilisation over time, the distribution of JCTs, and a Gantt chart.

Matplotlib draws them, an optional dependency (extra ``report``). The same records give the same bytes: there is no
date, and ids come from the content. The size of a chart is bounded for any trace.
"""

import io
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_airflow.errors import HeteroError
from hetero_airflow.policies.core.linear_program import Floats
from hetero_airflow.simulator.record import JobOutcome, JobRecord, SimulationRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 400
"""Points of a line."""
MAX_ROWS = 60
MAX_BARS = 1000
"""Bars of a Gantt chart."""
_WIDTH = 9.0
_WAITING = "#d0d0d0"
_HOUR_S = 3600.0
_MAX_LABEL = 28

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "hetero-airflow",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a job may be called "$x$"
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "path.simplify": True,
}


def utilisation_chart(records: Sequence[SimulationRecord]) -> str:
    """Share of the accelerators that jobs hold over time, a line for each policy. Each step is a mean."""
    figure = _Figure(3.0)
    for record in records:
        hours, shares = utilisation(record)
        figure.axes.stairs(shares * 100, hours, label=_label(record.policy), baseline=None)
    figure.axes.set(xlabel="hours since the start of the workload", ylabel="accelerators held, %", ylim=(0, 105))
    return figure.svg()


def jct_chart(records: Sequence[SimulationRecord]) -> str:
    """Share of the finished jobs whose JCT is at most the time on the x-axis, a line for each policy."""
    figure = _Figure(3.0)
    for record in records:
        hours = [(job.finished_s - job.submitted_s) / _HOUR_S for job in record.jobs if job.finished_s is not None]
        shares = np.linspace(0, 1, MAX_POINTS)
        if hours:
            figure.axes.plot(np.quantile(hours, shares), shares * 100, label=_label(record.policy))
    figure.axes.set(xscale="log", xlabel="JCT, hours", ylabel="finished jobs, %", ylim=(0, 105))
    figure.axes.xaxis.set_major_formatter("{x:g}")
    return figure.svg()


def gantt_chart(record: SimulationRecord) -> tuple[str, int]:
    """When jobs waited and where they ran, and how many jobs the chart shows: at most 60, evenly from all."""
    end_s = max((i.end_s for job in record.jobs for i in job.intervals), default=0.0)
    shown = gantt_jobs(record.jobs)
    figure = _Figure(0.9 + 0.17 * max(3, len(shown)))
    spans: dict[str, list[tuple[int, float, float]]] = {"waiting": []}
    spans |= {name: [] for name in sorted({i.device_class for job in shown for i in job.intervals})}
    for row, job in enumerate(shown):
        for name, start_s, stop_s in _bars(job, end_s):
            spans[name].append((row, start_s / _HOUR_S, (stop_s - start_s) / _HOUR_S))
    for number, (name, bars) in enumerate(spans.items()):
        rows, starts, widths = np.array(bars).reshape(-1, 3).T
        colour = f"C{number - 1}" if number else _WAITING
        figure.axes.barh(rows, widths, left=starts, height=0.8, color=colour, label=_label(name))
    figure.axes.set(xlabel="hours since the start of the workload")
    figure.axes.set_yticks(range(len(shown)), [_label(job.id) for job in shown], fontsize=6)
    figure.axes.set_ylim(max(1, len(shown)) - 0.4, -0.6)
    return figure.svg(), len(shown)


def _bars(job: JobRecord, end_s: float) -> Iterator[tuple[str, float, float]]:
    """(device class or "waiting", start, end): a bar for each interval; all ranks of a class share one."""
    until_s = job.submitted_s
    for start_s, stop_s, name in sorted({(i.start_s, i.end_s, i.device_class) for i in job.intervals}):
        if start_s > until_s:
            yield "waiting", until_s, start_s
        yield name, start_s, stop_s
        until_s = max(until_s, stop_s)
    if job.outcome is JobOutcome.WAITING and end_s > until_s:
        yield "waiting", until_s, end_s


def gantt_jobs(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """At most 60 jobs with at most 1000 bars, evenly from all jobs in their order."""
    count = min(len(jobs), MAX_ROWS)
    bars, chosen = 0, []
    for number in range(count):
        job = jobs[number * len(jobs) // count]
        bars += sum(1 for _ in _bars(job, math.inf))
        if bars > MAX_BARS:
            break
        chosen.append(job)
    return chosen


def utilisation(record: SimulationRecord, points: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """[points + 1] edges in hours and [points] mean shares, 0 to 1, of the accelerators held between them."""
    intervals = [i for job in record.jobs for i in job.intervals if i.device_class in record.devices]
    end_s = max((i.end_s for i in intervals), default=1.0)
    edges = np.linspace(0.0, end_s, points + 1)
    times = np.array([time for i in intervals for time in (i.start_s, i.end_s)])
    changes = np.array([change for i in intervals for change in (i.devices, -i.devices)])
    order = np.argsort(times, kind="stable")
    # The integral of the devices held is linear between changes, so interpolation is exact at the edges.
    at = np.concatenate([[0.0], times[order], [end_s]])
    held = np.concatenate([[0.0], np.cumsum(changes[order])])
    integral = np.concatenate([[0.0], np.cumsum(held * np.diff(at))])
    total = max(1, sum(record.devices.values())) * (end_s / points)
    return edges / _HOUR_S, np.diff(np.interp(edges, at, integral)) / total


class _Figure:
    """One pair of axes, drawn as SVG."""

    def __init__(self, height: float) -> None:
        try:
            from matplotlib import rc_context
            from matplotlib.figure import Figure
        except ImportError as error:
            raise HeteroError(
                "a report with charts", found="no matplotlib", remedy="Install it: pip install hetero-airflow[report]"
            ) from error
        with rc_context(_STYLE):
            self._figure = Figure(figsize=(_WIDTH, height), layout="constrained")
            self.axes: Axes = self._figure.add_subplot()

    def svg(self) -> str:
        """The drawing, from its first tag on."""
        from matplotlib import rc_context

        with rc_context(_STYLE):
            if self.axes.get_legend_handles_labels()[0]:
                self._figure.legend(loc="outside upper left", ncols=4, frameon=False)
            file = io.StringIO()
            self._figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        text = file.getvalue()
        return text[text.index("<svg") :]


def _label(text: str) -> str:
    """The text as short ASCII, never one that matplotlib hides."""
    plain = text.encode("ascii", "backslashreplace").decode()
    plain = "".join(char if char.isprintable() else "?" for char in plain).lstrip("_") or "?"
    return plain if len(plain) <= _MAX_LABEL else f"{plain[: _MAX_LABEL - 1]}~"
