"""Simulations as one page: figures, charts, nothing that is loaded from elsewhere and nothing that runs.

Names of jobs, groups and policies are foreign: they are escaped, the charts are images without scripts, and the
page's own policy forbids all but its styles and images.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from html import escape

from hetero_airflow.simulator.record import SimulationRecord
from hetero_airflow.simulator.reports.charts import gantt_chart, jct_chart, utilisation_chart
from hetero_airflow.simulator.reports.figures import Figures
from hetero_airflow.simulator.reports.tables import comparison, group_rows

MAX_GROUPS = 200
MAX_GANTTS = 4

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .15rem .8rem; text-align: right }
th:first-child, td:first-child { text-align: left } tr:nth-child(even) { background: #f4f4f4 }
td { overflow-wrap: anywhere } img { max-width: 100% } .note { color: #555 }
.simulated { background: #fff3cd; border: 1px solid #e0c060; padding: .5rem 1rem }
"""


def html_page(records: Sequence[SimulationRecord], figures: Sequence[Figures]) -> str:
    """The page of one workload under one or more policies.

    :param figures: of each record, see `figures.measure`
    """
    first = figures[0]
    devices = ", ".join(f"{count} × {name}" for name, count in first.devices.items())
    options = ", ".join(f"{name} {value}" for name, value in first.options.items())
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
            "style-src 'unsafe-inline'\">",
            f"<title>Simulated: {escape(first.workload)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(first.workload)}</h1>",
            '<p class="simulated"><strong>Simulated.</strong> No job of this page ran on a device: '
            "what decides is real, the workload is played back.</p>",
            f"<p>{escape(devices)}. {escape(options)}</p>",
            _table(*comparison(figures)),
            *_window_note(first),
            "<h2>Utilisation</h2>",
            _image(utilisation_chart(records), "Share of the accelerators held over time"),
            "<h2>Job completion times</h2>",
            _image(jct_chart(records), "Cumulative distribution of job completion times"),
            *_gantts(records),
            *_groups(figures),
            "</body></html>\n",
        ]
    )


def _gantts(records: Sequence[SimulationRecord]) -> Iterator[str]:
    yield "<h2>Which jobs ran when</h2>"
    for record in records[:MAX_GANTTS]:
        chart, shown = gantt_chart(record)
        part = "" if shown == len(record.jobs) else f", {shown} of {len(record.jobs)} jobs, evenly from all"
        yield f"<h3>{escape(record.policy)}{part}</h3>"
        yield _image(chart, f"Gantt chart of {shown} of {len(record.jobs)} jobs")
    if len(records) > MAX_GANTTS:
        yield f'<p class="note">Charts of the first {MAX_GANTTS} of {len(records)} policies.</p>'


def _groups(figures: Sequence[Figures]) -> Iterator[str]:
    yield "<h2>Groups</h2>"
    for one in figures:
        headers, rows = group_rows(one)
        yield f"<h3>{escape(one.policy)}</h3>"
        yield _table(headers, rows[:MAX_GROUPS])
        if len(rows) > MAX_GROUPS:
            yield f'<p class="note">The first {MAX_GROUPS} of {len(rows)} groups by name.</p>'


def _window_note(figures: Figures) -> Iterator[str]:
    window = figures.window
    parts = []
    if window.first_job or window.last_job is not None:
        parts.append(f"of the jobs from number {window.first_job} to {_end(window.last_job, 'the last')}")
    if window.start_s or window.end_s is not None:
        parts.append(f"of the time from {window.start_s:g} s to {_end(window.end_s, 'the end')}")
    if parts:
        yield f'<p class="note">The figures are {", ".join(parts)}; the charts are of all.</p>'


def _end(bound: float | None, none: str) -> str:
    return none if bound is None else f"{bound:g} (which is not in it)"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in headers)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _image(svg: str, what: str) -> str:
    return f'<img alt="{escape(what)}" src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'
