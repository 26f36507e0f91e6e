import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.errors import HeteroError
from hetero_airflow.simulator.record import JobOutcome, JobRecord, RunInterval, SimulationRecord
from hetero_airflow.simulator.reports.charts import (
    MAX_BARS,
    MAX_ROWS,
    gantt_chart,
    gantt_jobs,
    jct_chart,
    utilisation,
    utilisation_chart,
)
from hetero_airflow.simulator.reports.figures import measure

V100 = "nvidia/v100"


def a_job(
    id: str, *spans: tuple[float, float], submitted_s: float = 0.0, outcome: JobOutcome = JobOutcome.FINISHED
) -> JobRecord:
    intervals = tuple(RunInterval(start, end, "w", V100, 1.0) for start, end in spans)
    ended = spans[-1][1] if spans and outcome is JobOutcome.FINISHED else None
    return JobRecord(id, "g", "t", submitted_s, spans[0][0] if spans else None, ended, outcome, 1.0, intervals)


def a_record(*jobs: JobRecord, devices: int = 2, policy: str = "fifo") -> SimulationRecord:
    return SimulationRecord("w", policy, {V100: devices}, jobs)


def texts(svg: str) -> list[str]:
    """All texts of a drawing, which must be well-formed XML."""
    root = ElementTree.fromstring(svg)
    return [(element.text or "").strip() for element in root.iter() if element.tag.endswith("}text")]


def test_utilisation_is_the_mean_over_each_step() -> None:
    record = a_record(a_job("a", (0.0, 3600.0)), a_job("b", (900.0, 5400.0)), a_job("c", (7000.0, 7200.0)))

    hours, shares = utilisation(record, points=4)

    assert hours.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert shares == pytest.approx([(1800 + 900) / 3600, 1.0, 0.5, 200 / 3600])


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1, 1e5)), min_size=1, max_size=30), st.integers(1, 50))
def test_the_area_under_utilisation_is_the_device_time(spans: list[tuple[float, float]], points: int) -> None:
    record = a_record(*(a_job(str(number), (start, start + runs)) for number, (start, runs) in enumerate(spans)))

    hours, shares = utilisation(record, points)

    area = float(np.sum(np.diff(hours) * shares)) * 3600 * 2
    assert area == pytest.approx(sum(i.end_s - i.start_s for job in record.jobs for i in job.intervals), rel=1e-6)
    busy = measure(record).busy_utilisation
    assert busy is not None
    assert shares.max() >= busy * (min(s for s, _ in spans) == 0) - 1e-9


def test_charts_name_policies_classes_and_units() -> None:
    first = a_record(a_job("a", (10.0, 3600.0)), a_job("b", outcome=JobOutcome.WAITING))
    two = replace(first, policy="priority")

    assert {"fifo", "priority", "accelerators held, %"} <= set(texts(utilisation_chart([first, two])))
    assert {"fifo", "priority", "JCT, hours", "1"} <= set(texts(jct_chart([first, two])))
    chart, shown = gantt_chart(first)
    assert shown == 2
    assert {"a", "b", "waiting", V100} <= set(texts(chart))


def test_the_same_records_give_the_same_bytes() -> None:
    records = [a_record(a_job("a", (10.0, 3600.0)), a_job("b", (5.0, 99.0)))]

    for chart in (utilisation_chart, jct_chart):
        assert chart(records) == chart(records)
    assert gantt_chart(records[0]) == gantt_chart(records[0])


@pytest.mark.parametrize(
    "records", [[a_record()], [a_record(a_job("a", outcome=JobOutcome.WAITING))], [a_record(devices=0)]]
)
def test_runs_in_which_nothing_happened_have_charts_too(records: list[SimulationRecord]) -> None:
    for chart in (utilisation_chart, jct_chart):
        texts(chart(records))
    texts(gantt_chart(records[0])[0])


@settings(max_examples=8, deadline=None)
@given(
    st.text(min_size=1, max_size=60)
    | st.sampled_from(["$x$", "<script>", "_hidden", "%s{x:g}", "&amp;", "\x00\x1b[31m"])
)
def test_any_name_is_drawn_as_harmless_text(name: str) -> None:
    record = a_record(a_job(name, (0.0, 5.0)), policy=name)

    for chart in (utilisation_chart([record]), jct_chart([record]), gantt_chart(record)[0]):
        assert "<script" not in chart
        assert all(word.isascii() or word == "−" for word in texts(chart))


def test_many_jobs_are_shown_in_part_evenly() -> None:
    jobs = [a_job(str(number), (number, number + 1.0)) for number in range(6000)]

    assert [job.id for job in gantt_jobs(jobs)] == [str(number * 100) for number in range(MAX_ROWS)]
    restless = [a_job("r", *((t * 2.0, t * 2.0 + 1.0) for t in range(MAX_BARS // 4))) for _ in range(9)]
    assert len(gantt_jobs(restless)) == 2


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    with pytest.raises(HeteroError, match=r"pip install hetero-airflow\[report\]"):
        utilisation_chart([a_record()])
