"""The figures of a report, and its lower bounds: worked out by hand, and below what policies reach."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.errors import TraceError
from hetero_airflow.policies.assignment import Assignment
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.record import JobOutcome, JobRecord, RunInterval, SimulationRecord
from hetero_airflow.simulator.reports.figures import (
    DurationSpread,
    Figures,
    GroupFigures,
    MeasuredWindow,
    least_makespan_s,
    least_mean_jct_s,
    measure,
    measure_timing,
)
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace

V100, K80, CPU = "nvidia/v100", "nvidia/k80", "generic/x86-64"


def a_job(
    id: str, submitted_s: float, *run_intervals: RunInterval, finished_s: float | None = None,
    best_device_s: float = 0.0, group: str = "g", outcome: JobOutcome | None = None,
    preemptions: int = 0, migrations: int = 0,
) -> JobRecord:  # fmt: skip
    started_s = run_intervals[0].start_s if run_intervals else None
    job_outcome = outcome or (JobOutcome.FINISHED if finished_s is not None else JobOutcome.WAITING)
    return JobRecord(
        id,
        group,
        "task",
        submitted_s,
        started_s,
        finished_s,
        job_outcome,
        1.0,
        run_intervals,
        best_device_s,
        preemptions,
        migrations,
    )


def a_record(*jobs: JobRecord, decision_s: tuple[float, ...] = (), placements: int = 0) -> SimulationRecord:
    return SimulationRecord("w", "p", {V100: 2, K80: 2}, jobs, {"seed": 1}, decision_s, placements)


TWO = a_record(
    a_job("a", 10.0, RunInterval(20.0, 60.0, "v", V100, 2, 10.0), finished_s=60.0, best_device_s=60.0, group="x"),
    a_job(
        "b", 30.0, RunInterval(30.0, 40.0, "k", K80, 1), RunInterval(50.0, 110.0, "v", V100, 1, 20.0), finished_s=110.0,
        best_device_s=45.0, preemptions=1, migrations=1,
    ),
)  # fmt: skip


def test_the_figures_of_a_run_worked_out_by_hand() -> None:
    assert measure(TWO) == Figures(
        workload="w",
        policy="p",
        window=MeasuredWindow(),
        options={"seed": 1},
        devices={V100: 2, K80: 2},
        all=GroupFigures(2, 2, 0, DurationSpread(65.0, 65.0, 78.5, 79.7), DurationSpread(5.0, 5.0, 9.5, 9.9)),
        groups={
            "g": GroupFigures(1, 1, 0, DurationSpread(80.0, 80.0, 80.0, 80.0), DurationSpread(0.0, 0.0, 0.0, 0.0)),
            "x": GroupFigures(1, 1, 0, DurationSpread(50.0, 50.0, 50.0, 50.0), DurationSpread(10.0, 10.0, 10.0, 10.0)),
        },
        makespan_s=100.0,
        least_mean_jct_s=52.5,
        least_makespan_s=65.0,
        busy_utilisation=150.0 / 400.0,
        goodput_utilisation=105.0 / 400.0,
        overhead=40.0 / 150.0,
        finished_in_window=2,
        jobs_per_hour=72.0,
        preemptions=1,
        migrations=1,
    )


def test_a_span_of_time_counts_what_was_submitted_in_it_and_the_devices_in_it() -> None:
    figures = measure(TWO, MeasuredWindow(start_s=25.0, end_s=65.0))

    assert (figures.all.jobs, figures.finished_in_window) == (1, 1)  # b was submitted, a finished
    assert figures.makespan_s == 80.0
    held, lost = 35 * 2 + 10 + 15, 5 * 2 + 15
    assert figures.busy_utilisation == pytest.approx(held / (4 * 40))
    assert figures.overhead == pytest.approx(lost / held)
    # a: 60 device-seconds of work in 60 productive ones, b: 45 in 50; productive in the span: 60 and 10
    assert figures.goodput_utilisation == pytest.approx((60 * 1.0 + 10 * 0.9) / (4 * 40))
    assert figures.jobs_per_hour == pytest.approx(90.0)


def test_a_range_of_jobs_leaves_the_devices_of_the_others_in_the_utilisation() -> None:
    figures = measure(TWO, MeasuredWindow(first_job=1))

    assert (figures.all.jobs, figures.finished_in_window) == (1, 1)
    assert figures.busy_utilisation == pytest.approx((30 * 2 + 10 + 60) / (4 * 80))


def test_jobs_that_have_not_ended_have_no_makespan_and_no_wait() -> None:
    running = a_job("c", 0.0, RunInterval(5.0, 50.0, "v", V100, 1), outcome=JobOutcome.RUNNING, best_device_s=999.0)
    figures = measure(a_record(running, a_job("d", 1.0)))

    assert figures.all == GroupFigures(2, 0, 1, None, DurationSpread(5.0, 5.0, 5.0, 5.0))
    assert figures.makespan_s is None
    assert figures.goodput_utilisation == 0.0


def test_a_withdrawn_job_does_not_delay_the_makespan() -> None:
    done = a_job("c", 0.0, RunInterval(5.0, 50.0, "v", V100, 1), finished_s=50.0)

    assert measure(a_record(done, a_job("d", 1.0, outcome=JobOutcome.LEFT))).makespan_s == 50.0


def test_cores_of_a_cpu_are_not_in_the_utilisation() -> None:
    cores = a_job("c", 0.0, RunInterval(0.0, 50.0, "v", CPU, 32), finished_s=50.0, best_device_s=1600.0)

    figures = measure(a_record(cores))

    assert (figures.busy_utilisation, figures.goodput_utilisation, figures.overhead) == (0.0, 0.0, None)


def test_a_run_without_jobs_has_no_figures_but_no_error_either() -> None:
    figures = measure(a_record())

    assert figures.all == GroupFigures(0, 0, 0, None, None)
    assert (figures.makespan_s, figures.busy_utilisation, figures.jobs_per_hour) == (None, None, None)


@pytest.mark.parametrize(
    "fields",
    [{"first_job": -1}, {"first_job": 3, "last_job": 3}, {"start_s": -1.0}, {"start_s": 5.0, "end_s": 5.0},
     {"start_s": float("nan")}, {"end_s": float("nan")}],
)  # fmt: skip
def test_an_empty_window_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(TraceError, match="an empty range"):
        MeasuredWindow(**fields)  # type: ignore[arg-type]


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_percentiles_are_numpys(values: list[float]) -> None:
    spread = DurationSpread.of(values)

    assert spread is not None
    assert [spread.p50, spread.p95, spread.p99] == pytest.approx(
        np.percentile(values, [50, 95, 99]), rel=1e-9, abs=1e-9
    )
    assert spread.mean == pytest.approx(np.mean(values))


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(1, 1e4), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=9)
)
def test_work_on_the_best_class_is_busy_time_without_overhead(jobs: list[tuple[float, float, float, float]]) -> None:
    records = []
    for number, (submitted, runs, waits, overhead) in enumerate(jobs):
        start = submitted + waits
        interval = RunInterval(start, start + runs, "v", V100, 1, overhead * runs)
        best = interval.end_s - interval.start_s - interval.overhead_s
        records.append(a_job(str(number), submitted, interval, finished_s=interval.end_s, best_device_s=best))

    figures = measure(a_record(*records))

    assert figures.busy_utilisation is not None
    assert figures.overhead is not None
    assert figures.goodput_utilisation == pytest.approx(figures.busy_utilisation * (1 - figures.overhead), abs=1e-12)


def test_timing_measures_the_decisions() -> None:
    timing = measure_timing(a_record(decision_s=(0.1, 0.3), placements=8))

    assert (timing.cycles, timing.slowest_s, timing.placements_per_s) == (2, 0.3, pytest.approx(20.0))
    assert measure_timing(a_record()).placements_per_s == 0.0


def a_long_job(submitted_s, alone_s, device_class=V100):
    """One that ran for long on one device."""
    interval = RunInterval(submitted_s, 999.0, "w", device_class, 1.0)
    outcome = JobOutcome.FINISHED
    return JobRecord("a", "g", "t", submitted_s, submitted_s, 999.0, outcome, 1.0, (interval,), alone_s)


def test_jobs_that_meet_on_one_device_wait_for_the_shortest_first():
    jobs = [a_long_job(0.0, 10.0), a_long_job(1.0, 2.0), a_long_job(1.0, 20.0)]
    assert least_mean_jct_s(jobs, {V100: 1}) == pytest.approx((12 + 2 + 31) / 3)
    assert least_makespan_s(jobs, {V100: 1}) == 32.0


def test_jobs_on_enough_devices_take_their_own_time():
    jobs = [a_long_job(0.0, 10.0), a_long_job(1.0, 2.0), a_long_job(1.0, 20.0)]
    assert least_mean_jct_s(jobs, {V100: 30}) == pytest.approx(32 / 3)
    assert least_makespan_s(jobs, {V100: 30}) == 21.0


def test_a_job_on_cpus_never_waits_for_accelerators_in_a_bound():
    jobs = [a_long_job(0.0, 10.0), a_long_job(0.0, 100.0, CPU)]
    assert least_mean_jct_s(jobs, {V100: 1}) == 55.0
    assert least_mean_jct_s(jobs[1:], {}) == 100.0
    assert least_makespan_s(jobs, {V100: 1}) == 100.0


def test_without_jobs_there_is_no_bound():
    assert (least_mean_jct_s([], {V100: 1}), least_makespan_s([], {V100: 1})) == (None, None)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", [Fifo, Assignment])
def test_no_policy_is_below_the_bounds(policy, seed):
    workload = load_trace(f"generated/bursty_rate30_jobs60_seed{seed}")
    figures = measure(Simulation(workload, parse_cluster("a100=2x8,v100=4"), policy(), "policy").run())
    assert 0 < figures.least_mean_jct_s <= figures.all.jct_s.mean * (1 + 1e-9)
    assert 0 < figures.least_makespan_s <= figures.makespan_s * (1 + 1e-9)
