import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from hetero_airflow.simulator.record import JobOutcome, JobRecord, RunInterval, SimulationRecord
from hetero_airflow.simulator.reports.figures import MeasuredWindow, measure
from hetero_airflow.simulator.reports.html_page import MAX_GANTTS, MAX_GROUPS, html_page
from tests.effort import effort, long

V100 = "nvidia/v100"
HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'&\x00\u202e$\\frac{"


class Tags(HTMLParser):
    """All tags with their attributes, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def a_record(
    jobs: int, intervals: int = 1, name: str = "job", policy: str = "fifo", groups: int = 1
) -> SimulationRecord:
    return SimulationRecord(
        f"trace {name}", policy, {V100: 64},
        tuple(
            JobRecord(
                f"{name}{number}", f"{name}{number % groups}", name,
                float(number), number + 60.0, number + 60.0 + 20 * intervals, JobOutcome.FINISHED, 1.0,
                tuple(
                    RunInterval(number + 60.0 + 20 * s, number + 75.0 + 20 * s, "w", V100, 1) for s in range(intervals)
                ), 5.0, intervals - 1,
            )
            for number in range(jobs)
        ),
        {"seed": 3, name: name},
    )  # fmt: skip


def page_of(*records: SimulationRecord, window: MeasuredWindow | None = None) -> str:
    return html_page(records, [measure(record, window) for record in records])


def test_the_page_says_simulated_and_shows_figures_and_charts() -> None:
    page = page_of(a_record(3), a_record(3, policy="priority"))
    tags = parsed(page)

    assert "Simulated. No job of this page ran on a device" in " ".join(tags.text.split())
    assert "64 × nvidia/v100" in tags.text
    assert "JCT mean, h" in tags.text
    alts = [attributes["alt"] for tag, attributes in tags.tags if tag == "img"]
    assert len(alts) == 4
    assert alts[2:] == ["Gantt chart of 3 of 3 jobs"] * 2


def test_the_page_loads_nothing_and_runs_no_script() -> None:
    tags = parsed(page_of(a_record(3, name=HOSTILE, policy=HOSTILE), a_record(3)))

    allowed = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "strong", "table", "thead",
               "tbody", "tr", "th", "td", "img"}  # fmt: skip
    assert {tag for tag, _ in tags.tags} <= allowed
    for _, attributes in tags.tags:
        assert set(attributes) <= {"lang", "charset", "http-equiv", "content", "class", "alt", "src"}
        assert (attributes.get("src") or "data:image/svg+xml;base64,").startswith("data:image/svg+xml;base64,")
    policy = next(attributes["content"] for _, attributes in tags.tags if "http-equiv" in attributes)
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_charts_hold_no_script_and_no_link() -> None:
    page = page_of(a_record(3, name=HOSTILE, policy=HOSTILE))

    images = [base64.b64decode(code).decode() for code in re.findall(r"base64,([^\"]+)", page)]
    assert len(images) == 3
    for image in images:
        assert "<script" not in image
        assert "<image" not in image
        assert not re.search(r"href=\"(?!#)", image)


def test_the_same_records_give_the_same_bytes() -> None:
    record = a_record(30, intervals=3)

    assert page_of(record) == page_of(replace(record, decision_s=(1.0, 2.0)))


@long
@pytest.mark.parametrize(("jobs", "intervals"), [(effort(10_000, 50_000), 1), (500, 100)])
def test_a_long_trace_makes_a_page_below_3_mb_that_says_what_it_leaves_out(jobs: int, intervals: int) -> None:
    records = [a_record(jobs, intervals, policy=f"p{number}", groups=5000) for number in range(2)]

    page = page_of(*records)

    assert len(page.encode()) < 3_000_000
    text = parsed(page).text
    assert re.search(rf"p0, \d+ of {jobs} jobs, evenly from all", text)
    assert f"The first {MAX_GROUPS} of {min(jobs, 5000)} groups" in text


def test_many_policies_share_the_first_charts() -> None:
    page = page_of(*(a_record(3, policy=f"p{number}") for number in range(MAX_GANTTS + 1)))

    assert f"Charts of the first {MAX_GANTTS} of {MAX_GANTTS + 1} policies" in parsed(page).text


def test_the_page_names_the_window() -> None:
    text = parsed(page_of(a_record(9), window=MeasuredWindow(first_job=2, last_job=5, end_s=500.0))).text

    assert "of the jobs from number 2 to 5 (which is not in it), of the time from 0 s to 500" in text
