from itertools import pairwise
from pathlib import Path

import pytest

from hetero_airflow.errors import TraceError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.traces.files import csv_rows, find_file
from hetero_airflow.simulator.workload import Job

HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "philly").mkdir()
    return tmp_path


def put(folder: Path, *lines: str) -> None:
    (folder / "philly" / "philly_2017-09_10.csv").write_text(HEADER + "".join(f"{line}\n" for line in lines))


def test_a_month_is_sorted_by_time_and_begins_with_its_first_job(folder: Path) -> None:
    put(
        folder,
        "2017-10-02 00:00:30,5.5,8,44,b",
        "2017-09-30 23:59:59,9,1,9,a",
        "2017-10-02 00:00:00,7,1,7,a",
        "2017-10-02 00:00:30,5.5,8,44,b",
    )

    one_gpu, eight = DeviceRequest.parse("gpu:1"), DeviceRequest.parse("gpu:8")
    assert load_trace("philly/2017-10", folder).jobs == (
        Job("philly_2017-09_10-4", 0.0, one_gpu, work=7.0, task="x1", group="a"),
        Job("philly_2017-09_10-2", 30.0, eight, work=5.5, task="x8", group="b"),
        Job("philly_2017-09_10-5", 30.0, eight, work=5.5, task="x8", group="b"),
    )


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("2017-10-32 00:00:00,5,1,5,a", "timestamp"),
        ("17-10-02,5,1,5,a", "timestamp"),
        ("2017-10-02 00:00:00,0,1,5,a", "duration"),
        ("2017-10-02 00:00:00,5,0,5,a", "num_gpus"),
        ("2017-10-02 00:00:00,5,1,5,", "cluster"),
    ],
)
def test_a_line_that_cannot_be_right_is_refused(folder: Path, line: str, field: str) -> None:
    put(folder, line)

    with pytest.raises(TraceError) as caught:
        load_trace("philly/2017-10", folder)

    assert (caught.value.line, caught.value.field) == (2, field)


@pytest.mark.parametrize(
    ("name", "found"), [("2017-11", "no job of that month"), ("2017-13", "no month"), ("all", "no month")]
)
def test_a_month_that_is_not_there_is_refused(folder: Path, name: str, found: str) -> None:
    put(folder, "2017-10-02 00:00:00,5,1,5,a")

    with pytest.raises(TraceError) as caught:
        load_trace(f"philly/{name}", folder)

    assert caught.value.found == found


def test_the_published_months_are_read(public_traces: Path) -> None:
    october, september = (load_trace(f"philly/2017-{month}", public_traces).jobs for month in ("10", "09"))

    assert len(october) > len(september) > 1000
    clusters = csv_rows(find_file(public_traces / "philly", "philly_vc", (".csv", ".csv.gz")), ("vc", "node num"))
    assert {job.group for job in october} >= {row.text("vc") for row in clusters}
    assert all(first.arrival_s <= second.arrival_s for first, second in pairwise(october))
    assert october[-1].arrival_s < 31 * 86400
