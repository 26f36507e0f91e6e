"""Simulations as one HTML page with figures and charts, which loads nothing and runs no script.

Names of jobs, groups and policies come from traces, so the template escapes them. The charts are images, and the
page's Content-Security-Policy allows only its own styles and images.
"""

import base64
from collections.abc import Iterator, Sequence

from jinja2 import Environment, StrictUndefined

from hetero_airflow.simulator.record import SimulationRecord
from hetero_airflow.simulator.reports.charts import gantt_chart, jct_chart, utilisation_chart
from hetero_airflow.simulator.reports.figures import Figures
from hetero_airflow.simulator.reports.tables import comparison, group_rows

MAX_GROUPS = 200
MAX_GANTTS = 4

_PAGE = """\
{%- macro table(headers, rows) -%}
<table><thead><tr>{% for text in headers %}<th>{{ text }}</th>{% endfor %}</tr></thead><tbody>
{%- for row in rows %}<tr>{% for text in row %}<td>{{ text }}</td>{% endfor %}</tr>{% endfor -%}
</tbody></table>
{%- endmacro -%}
{%- macro image(svg, text) -%}
<img alt="{{ text }}" src="data:image/svg+xml;base64,{{ svg | base64 }}">
{%- endmacro -%}
<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Simulated: {{ first.workload }}</title><style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .15rem .8rem; text-align: right }
th:first-child, td:first-child { text-align: left } tr:nth-child(even) { background: #f4f4f4 }
td { overflow-wrap: anywhere } img { max-width: 100% } .note { color: #555 }
.simulated { background: #fff3cd; border: 1px solid #e0c060; padding: .5rem 1rem }
</style></head><body>
<h1>{{ first.workload }}</h1>
<p class="simulated"><strong>Simulated.</strong> No job of this page ran on a device: \
what decides is real, the workload is played back.</p>
<p>
{%- for name, count in first.devices.items() %}{{ count }} × {{ name }}{{ ", " if not loop.last }}{% endfor %}. \
{% for name, value in first.options.items() %}{{ name }} {{ value }}{{ ", " if not loop.last }}{% endfor -%}
</p>
{{ table(*comparison) }}
{% if window %}
<p class="note">The figures are {{ window }}; the charts are of all.</p>
{% endif %}
<h2>Utilisation</h2>
{{ image(utilisation, "Share of the accelerators held over time") }}
<h2>Job completion times</h2>
{{ image(jct, "Cumulative distribution of job completion times") }}
<h2>Which jobs ran when</h2>
{% for record, (chart, shown) in gantts %}
{% set jobs = record.jobs | length %}
<h3>{{ record.policy }}{% if shown != jobs %}, {{ shown }} of {{ jobs }} jobs, evenly from all{% endif %}</h3>
{{ image(chart, "Gantt chart of %s of %s jobs" % (shown, jobs)) }}
{% endfor %}
{% if records > max_gantts %}
<p class="note">Charts of the first {{ max_gantts }} of {{ records }} policies.</p>
{% endif %}
<h2>Groups</h2>
{% for policy, (headers, rows) in groups %}
<h3>{{ policy }}</h3>
{{ table(headers, rows[:max_groups]) }}
{% if rows | length > max_groups %}
<p class="note">The first {{ max_groups }} of {{ rows | length }} groups by name.</p>
{% endif %}
{% endfor %}
</body></html>
"""


def html_page(records: Sequence[SimulationRecord], figures: Sequence[Figures]) -> str:
    """The page of one workload under one or more policies.

    :param figures: of each record, see `figures.measure`
    """
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters["base64"] = lambda text: base64.b64encode(text.encode()).decode()
    return environment.from_string(_PAGE).render(
        first=figures[0],
        comparison=comparison(figures),
        window=", ".join(_window_parts(figures[0])),
        utilisation=utilisation_chart(records),
        jct=jct_chart(records),
        gantts=[(record, gantt_chart(record)) for record in records[:MAX_GANTTS]],
        records=len(records),
        groups=[(policy_figures.policy, group_rows(policy_figures)) for policy_figures in figures],
        max_gantts=MAX_GANTTS,
        max_groups=MAX_GROUPS,
    )


def _window_parts(figures: Figures) -> Iterator[str]:
    window = figures.window
    if window.first_job or window.last_job is not None:
        yield f"of the jobs from number {window.first_job} to {_end(window.last_job, 'the last')}"
    if window.start_s or window.end_s is not None:
        yield f"of the time from {window.start_s:g} s to {_end(window.end_s, 'the end')}"


def _end(bound: float | None, none: str) -> str:
    return none if bound is None else f"{bound:g} (which is not in it)"
