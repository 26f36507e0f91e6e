"""Gavel's traces, and learned estimates of its job types, compared with the measurements."""

import gzip
import json
import math
import random
import statistics
from pathlib import Path

import pytest

from hetero_airflow.errors import TraceError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.scheduling.learning.learner import Learner
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.traces.gavel import CLASSES, read_speeds
from hetero_airflow.simulator.workload import Job
from hetero_airflow.testing import a_run

HEADER = "job_id,arrival_s,job_type,gpus,total_steps,thr_v100,thr_p100,thr_k80\n"
SPEEDS = {
    "v100": {"('LM (batch size 5)', 2)": {"null": 8.0, "('A3C', 1)": [1.0, 2.0]}, "('A3C', 1)": {"null": 4.0}},
    "p100": {"('LM (batch size 5)', 2)": {"null": 4.0}, "('A3C', 1)": {"null": 2.0}},
    "k80": {"('LM (batch size 5)', 2)": {"null": 0.0}, "('A3C', 1)": {"null": 1.0}},
}
TRACE_LINE = "A3C\tpython3 main.py --x %s\tdir\t--steps\t1\t{steps}\t1\t1\t-1.000000\t{arrival}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gavel").mkdir()
    (tmp_path / "gavel" / "simulation_throughputs.json.gz").write_bytes(gzip.compress(json.dumps(SPEEDS).encode()))
    return tmp_path


def put(folder: Path, text: str, name: str = "t.csv") -> None:
    (folder / "gavel" / name).write_text(text)


def refusal(folder: Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        load_trace("gavel/t", folder)
    return caught.value


def test_a_job_has_steps_as_work_and_an_unordered_choice_of_the_models_that_can_run_it(folder: Path) -> None:
    put(folder, HEADER + "7,1.5,LM (batch size 5),2,100,8.0,4.0,0.0\n8,1.5,A3C,1,3,1,1,1\n")

    workload = load_trace("gavel/t", folder)

    assert workload.jobs[0] == Job(
        id="7",
        arrival_s=1.5,
        request=DeviceRequest.parse({"v100:2", "p100:2"}),
        work=100.0,
        speeds={"nvidia/v100": 8.0, "nvidia/p100": 4.0},
        task="LM (batch size 5) x2",
        group="gavel",
    )
    assert workload.name == "gavel/t"


def test_equal_requests_are_parsed_once(folder: Path) -> None:
    put(folder, HEADER + "1,0,A3C,1,3,1,1,1\n2,0,LM,1,3,2,2,2\n")

    first, second = load_trace("gavel/t", folder).jobs

    assert first.request is second.request


def test_the_publishers_own_form_takes_its_speeds_from_the_table(folder: Path) -> None:
    put(folder, TRACE_LINE.format(steps=50, arrival=0) + TRACE_LINE.format(steps=60, arrival=9), "t.trace")

    assert [(job.id, job.arrival_s, job.work, dict(job.speeds)) for job in load_trace("gavel/t", folder).jobs] == [
        ("0", 0.0, 50.0, {"nvidia/v100": 4.0, "nvidia/p100": 2.0, "nvidia/k80": 1.0}),
        ("1", 9.0, 60.0, {"nvidia/v100": 4.0, "nvidia/p100": 2.0, "nvidia/k80": 1.0}),
    ]


@pytest.mark.parametrize(
    ("line", "field", "problem"),
    [
        ("1,0,A3C,1,10,0,0,0", "thr_v100", "no speed above 0"),
        ("1,0,A3C,1,10,nan,1,1", "thr_v100", "no finite number"),
        ("1,0,A3C,1,10,1,-1,1", "thr_p100", "below 0"),
        ("1,0,A3C,1,10,1,1,1e300", "thr_k80", "above"),
        ("1,0,A3C,0,10,1,1,1", "gpus", "below 1"),
        ("1,0,A3C,1.5,10,1,1,1", "gpus", "fraction"),
        ("1,0,A3C,1,0,1,1,1", "total_steps", "below"),
        ("1,0,,1,10,1,1,1", "job_type", "no text"),
        ("1,-1,A3C,1,10,1,1,1", "arrival_s", "below 0"),
    ],
)
def test_a_line_that_cannot_be_right_is_refused_with_line_and_field(
    folder: Path, line: str, field: str, problem: str
) -> None:
    put(folder, f"{HEADER}0,0,A3C,1,10,1,1,1\n{line}\n")

    error = refusal(folder)

    assert (error.line, error.field) == (3, field)
    assert problem in error.found


def test_lines_out_of_order_are_refused(folder: Path) -> None:
    put(folder, HEADER + "0,5,A3C,1,10,1,1,1\n1,4.5,A3C,1,10,1,1,1\n")

    error = refusal(folder)

    assert (error.line, error.field, error.found) == (3, "arrival_s", "less than the 5 before it")


def test_a_job_twice_is_refused(folder: Path) -> None:
    put(folder, HEADER + "0,5,A3C,1,10,1,1,1\n1,5,A3C,1,10,1,1,1\n0,5,A3C,1,10,1,1,1\n")

    error = refusal(folder)

    assert (error.line, error.field, error.found) == (4, "job_id", "the same in line 2")


def test_a_job_type_without_speeds_is_refused(folder: Path) -> None:
    put(folder, TRACE_LINE.format(steps=5, arrival=0).replace("A3C", "GPT-9"), "t.trace")

    error = refusal(folder)

    assert (error.line, error.field) == (1, "job_type")
    assert "'GPT-9'" in error.asked


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"v100": []}',
        '{"v100": {"A3C": {"null": 1}}}',
        '{"v100": {"(\'A3C\', 1)": {"null": NaN}}}',
        '{"v100": {"(\'A3C\', 1)": {"null": -1}}}',
        '{"v100": {"(\'A3C\', 1)": {"null": true}}}',
        '{"v100": {"(\'A3C\', 1)": 3}}',
        "[" * 100_000,
    ],
)
def test_a_table_of_speeds_that_cannot_be_right_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "simulation_throughputs.json").write_text(content)

    with pytest.raises(TraceError) as caught:
        read_speeds(tmp_path)

    assert str(caught.value).startswith("simulation_throughputs.json")


def test_the_published_streams_hold_their_own_speeds(public_traces: Path) -> None:
    speeds = read_speeds(public_traces / "gavel")

    for name, jobs in (("h300_seed0", 300), ("m300_seed0", 300)):
        workload = load_trace(f"gavel/{name}", public_traces)
        assert len(workload.jobs) == jobs
        for job in workload.jobs:
            kind, gpus = job.task.rsplit(" x", 1)
            measured = {f"nvidia/{model}": speed for model, speed in speeds[kind, int(gpus)].items() if speed}
            assert job.speeds == pytest.approx(measured)


@pytest.mark.parametrize("name", ["max_min_fairness", "minimize_makespan", "small_test"])
def test_the_publishers_own_traces_are_read(public_traces: Path, name: str) -> None:
    jobs = load_trace(f"gavel/{name}", public_traces).jobs

    assert len(jobs) == len((public_traces / "gavel" / f"{name}.trace").read_text().splitlines())
    assert all(math.isfinite(job.work / job.speed("nvidia/v100")) for job in jobs)


WORK = 10_000.0


@pytest.fixture(scope="module")
def truth(public_traces) -> dict[tuple[str, str], dict[str, float]]:
    """Task → device class → seconds, for the job types that were measured on one device of each model."""
    table = read_speeds(public_traces / "gavel")
    whole = {kind: row for (kind, gpus), row in table.items() if gpus == 1 and all(row.get(c, 0) > 0 for c in CLASSES)}
    return {("gavel", kind): {f"nvidia/{c}": WORK / row[c] for c in CLASSES} for kind, row in sorted(whole.items())}


def measured_runs(truth, tasks, classes, generator):
    return [
        a_run(task=task, device_class=name, held_s=truth[task][name] * math.exp(generator.gauss(0, 0.1)))
        for task in tasks
        for name in classes
        for _ in range(5)
    ]


def off_by(truth, runs, tasks, classes) -> float:
    """The median factor between expectation and measurement."""
    learner = Learner()
    assert learner.learn(runs) == []
    estimates = learner.estimates(frozenset(next(iter(truth.values()))))
    ratios = [
        math.log(estimates.duration_s(task, name).middle / truth[task][name]) for task in tasks for name in classes
    ]
    return math.exp(statistics.median(map(abs, ratios)))


def test_more_runs_bring_estimates_closer(truth):
    generator = random.Random(2)
    tasks, (v100, *other_classes) = list(truth), [f"nvidia/{c}" for c in CLASSES]
    seen, unseen = tasks[::2], tasks[1::2]
    on_one = measured_runs(truth, tasks, [v100], generator)
    by_sheets = off_by(truth, on_one, unseen, other_classes)
    by_others = off_by(truth, on_one + measured_runs(truth, seen, other_classes, generator), unseen, other_classes)
    by_runs = off_by(truth, on_one + measured_runs(truth, seen, other_classes, generator), seen, other_classes)
    assert 1 < by_runs < 1.1 < by_others < by_sheets < 2
