"""The table of the docs is the table of the code."""

from pathlib import Path

from hetero_airflow.metrics.catalog import METRICS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "observability.md"


def table() -> str:
    rows = (
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '-'} | {metric.text} |" for metric in METRICS
    )
    return "\n".join(["| name | type | labels | meaning |", "|---|---|---|---|", *rows])


def test_the_docs_list_every_metric():
    _, _, rest = PAGE.read_text().partition("<!-- metrics -->\n")
    assert rest.partition("\n<!-- end metrics -->")[0] == table()
