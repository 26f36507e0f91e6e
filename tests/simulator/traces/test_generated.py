"""Generated streams of jobs and of DAG runs."""

import math
import random
import statistics
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.errors import TraceError
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.traces.files import VARIABLE
from hetero_airflow.simulator.traces.gavel import read_speeds
from hetero_airflow.simulator.traces.generated import (
    GAVEL_GANGS,
    PHILLY_SIZES,
    bursty_arrivals,
    dag_runs,
    exponential,
    gavel_duration_s,
    gavel_kinds,
    gavel_like,
    layers,
    lognormal,
    philly_like,
    pick,
    poisson_arrivals,
    random_design,
)
from hetero_airflow.simulator.workload import Workload


@pytest.mark.parametrize("stream", ["philly", "bursty"])
def test_a_stream_has_its_jobs_in_the_order_of_arrival(stream: str) -> None:
    workload = load_trace(f"generated/{stream}_rate20_jobs100_seed3")

    arrivals = [job.arrival_s for job in workload.jobs]
    assert (len(arrivals), arrivals) == (100, sorted(arrivals))
    assert workload.name == f"generated/{stream}_rate20_jobs100_seed3"


def test_dags_are_counted_by_runs() -> None:
    jobs = load_trace("generated/dags_rate2_jobs10_seed3").jobs

    assert {job.id.partition(".")[0] for job in jobs} == {str(run) for run in range(10)}
    assert any(job.after for job in jobs)


def test_another_rate_does_not_change_the_jobs() -> None:
    slow, fast = (load_trace(f"generated/philly_rate{rate}_jobs50_seed3").jobs for rate in (1, 2))

    assert [(job.work, job.task, job.group) for job in slow] == [(job.work, job.task, job.group) for job in fast]
    assert [job.arrival_s for job in slow] == pytest.approx([2 * job.arrival_s for job in fast])


def test_another_process_makes_the_same_bytes() -> None:
    name = "generated/dags_rate2_jobs5_seed3"
    program = f"from hetero_airflow.simulator.traces import load_trace\nprint(repr(load_trace({name!r})))"
    made = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env={"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]

    assert made[0].stdout == made[1].stdout
    assert made[0].stdout.decode().strip() == repr(load_trace(name))


@pytest.mark.parametrize(
    "name",
    ["gavel", "gavel_rate0_jobs5_seed1", "gavel_rate1_jobs0_seed1", "gavel_rate-1_jobs5_seed1", "gavel_rate1_jobs5",
     "tiresias_rate1_jobs5_seed1", "gavel_rate9999999_jobs5_seed1", "philly_rate1_jobs200001_seed1"],
)  # fmt: skip
def test_a_name_out_of_bounds_is_refused(name: str) -> None:
    with pytest.raises(TraceError, match=f"generated/'{name}'"):
        load_trace(f"generated/{name}")


def test_gavels_speeds_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(TraceError, match=f"Set {VARIABLE}"):
        load_trace("generated/gavel_rate1_jobs5_seed1")
    with pytest.raises(TraceError, match="simulation_throughputs"):
        load_trace("generated/gavel_rate1_jobs5_seed1", tmp_path)


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 5))
def test_layers_wait_only_for_earlier_tasks_and_hang_together(seed: int, depth: int, width: int) -> None:
    after = layers(random.Random(seed), depth, width)

    assert depth <= len(after) <= depth * width
    for number, before in enumerate(after):
        assert all(upstream < number for upstream in before)
        assert len(set(before)) == len(before)
    roots = sum(not before for before in after)
    assert roots <= width


@given(st.integers(0, 10_000))
def test_a_design_is_whole(seed: int) -> None:
    design = random_design(random.Random(seed), "d")

    assert len(design.kinds) == len(design.durations_s) == len(design.after) >= 3
    assert all(duration > 0 for duration in design.durations_s)


def test_runs_of_a_design_are_alike_but_not_equal() -> None:
    design = random_design(random.Random(1), "d")
    jobs = dag_runs(random.Random(2), [design], 2, [0.0, 60.0]).jobs
    first, second = jobs[: len(design.after)], jobs[len(design.after) :]

    assert [job.task for job in first] == [job.task for job in second]
    assert {job.group for job in jobs} == {"d"}
    assert {job.arrival_s for job in second} == {60.0}
    assert [job.work for job in first] != [job.work for job in second]
    assert [tuple(b.replace("1.", "0.", 1) for b in job.after) for job in second] == [job.after for job in first]


def test_the_same_seed_gives_the_same_runs_and_the_simulator_ends_them() -> None:
    def made(seed: int) -> tuple[object, ...]:
        rng = random.Random(seed)
        designs = [random_design(rng, f"d{number}") for number in range(3)]
        return dag_runs(rng, designs, 6, poisson_arrivals(rng, 2.0)).jobs

    assert repr(made(4)) == repr(made(4))
    assert made(4) != made(5)
    rng = random.Random(4)
    work = dag_runs(rng, [random_design(rng, "d")], 6, poisson_arrivals(rng, 2.0))
    record = Simulation(work, parse_cluster("v100=1,k80=1"), Fifo(), "fifo").run()
    ended = {job.id: job for job in record.jobs}
    for job in work.jobs:
        for before in job.after:
            assert ended[job.id].started_s >= ended[before].finished_s  # type: ignore[operator]
    assert ended[work.jobs[-1].id].finished_s is not None


@pytest.mark.parametrize("runs", [0, 1])
def test_few_runs_are_few_jobs(runs: int) -> None:
    design = random_design(random.Random(1), "d")

    assert len(dag_runs(random.Random(2), [design], runs, [0.0]).jobs) == runs * len(design.after)


COUNT = 8000


def gap(first: list[float], second: list[float]) -> float:
    """The largest distance between two distributions (Kolmogorov and Smirnov), over what chance allows at 0.1 %."""
    at = np.sort(np.concatenate([first, second]))
    shares = [np.searchsorted(np.sort(values), at, side="right") / len(values) for values in (first, second)]
    chance = math.sqrt(-math.log(0.001 / 2) / 2) * math.sqrt(1 / len(first) + 1 / len(second))
    return float(np.abs(shares[0] - shares[1]).max()) / chance


def minutes(workload: Workload) -> list[float]:
    return [job.work / job.speed("nvidia/v100") / 60 for job in workload.jobs]


def gaps(workload: Workload) -> list[float]:
    return [second.arrival_s - first.arrival_s for first, second in pairwise(workload.jobs)]


@pytest.mark.parametrize(
    ("name", "generated"),
    [
        ("single_rate4.8_seed0", "gavel_rate4.8_jobs8000_seed1000"),
        ("multi_rate2.4_seed0", "multi_rate2.4_jobs6000_seed1000"),
    ],
)
def test_streams_are_distributed_as_gavels(public_traces: Path, name: str, generated: str) -> None:
    published, ours = load_trace(f"gavel/{name}", public_traces), load_trace(f"generated/{generated}", public_traces)

    assert gap(minutes(published), minutes(ours)) < 1
    assert gap(gaps(published), gaps(ours)) < 1
    types = [Counter(job.task for job in workload.jobs) for workload in (published, ours)]
    assert set(types[0]) == set(types[1])
    for task, count in types[0].items():
        assert abs(count - types[1][task]) < 4.5 * math.sqrt(count + types[1][task])
    speeds = {job.task: job.speeds for job in published.jobs}
    assert all(job.speeds == pytest.approx(speeds[job.task]) for job in ours.jobs)


def test_the_measure_of_the_last_test_tells_other_streams_apart(public_traces: Path) -> None:
    single, h300 = (load_trace(f"gavel/{name}", public_traces) for name in ("single_rate4.8_seed0", "h300_seed0"))
    rng = random.Random(1)

    assert gap(gaps(single), gaps(h300)) > 1
    assert gap(minutes(single), [lognormal(rng, 5.0, 1.5) for _ in range(COUNT)]) > 1


def test_the_same_seed_gives_the_same_jobs_and_another_does_not() -> None:
    first, again, other_seed = (
        gavel_like(random.Random(seed), 50, poisson_arrivals(random.Random(seed + 1), 4.8)) for seed in (7, 7, 8)
    )

    assert repr(first) == repr(again)
    assert first != other_seed


def test_durations_are_in_the_two_ranges() -> None:
    rng = random.Random(1)
    drawn = [math.log10(gavel_duration_s(rng) / 60) for _ in range(COUNT)]

    assert min(drawn) >= 1.5
    assert max(drawn) <= 4.0
    assert sum(duration > 3 for duration in drawn) / COUNT == pytest.approx(0.2, abs=0.015)


def test_gangs_have_their_shares(public_traces: Path) -> None:
    kinds = gavel_kinds(read_speeds(public_traces / "gavel"))
    made = gavel_like(random.Random(1), COUNT, poisson_arrivals(random.Random(2), 1.0), kinds, GAVEL_GANGS)

    drawn = Counter(job.request.alternatives[0].count for job in made.jobs if job.request)
    assert {size: drawn[size] / COUNT for size in GAVEL_GANGS} == pytest.approx(GAVEL_GANGS, abs=0.02)


def test_bursts_keep_the_rate_and_crowd_the_arrivals() -> None:
    hours = 20_000
    counts = {}
    for name, arrivals in (
        ("poisson", poisson_arrivals(random.Random(3), 10.0)),
        ("bursty", bursty_arrivals(random.Random(3), 10.0)),
    ):
        drawn = Counter(int(at // 3600) for at in islice(arrivals, 10 * hours))
        counts[name] = [drawn[hour] for hour in range(max(drawn))]

    for each in counts.values():
        assert statistics.fmean(each) == pytest.approx(10.0, rel=0.1)
    dispersion = {name: statistics.variance(each) / statistics.fmean(each) for name, each in counts.items()}
    assert dispersion["poisson"] == pytest.approx(1.0, abs=0.1)
    assert dispersion["bursty"] > 10


def test_philly_like_jobs_have_the_sizes_and_durations_of_the_table() -> None:
    made = philly_like(random.Random(5), 40_000, poisson_arrivals(random.Random(6), 60.0)).jobs

    single = [math.log(job.work) for job in made if job.task == "x1"]
    share, mu, sigma = PHILLY_SIZES[1]
    assert len(single) / len(made) == pytest.approx(share, abs=0.01)
    assert statistics.fmean(single) == pytest.approx(mu, abs=0.05)
    assert statistics.stdev(single) == pytest.approx(sigma, abs=0.05)
    groups = Counter(job.group for job in made)
    assert groups["vc0"] / len(made) == pytest.approx(0.5, abs=0.02)


def test_the_table_of_sizes_is_as_measured(public_traces: Path) -> None:
    jobs = load_trace("philly/2017-10", public_traces).jobs

    for gpus, (share, mu, sigma) in PHILLY_SIZES.items():
        logs = [math.log(job.work) for job in jobs if job.task == f"x{gpus}"]
        assert len(logs) / len(jobs) == pytest.approx(share, abs=0.002)
        assert (statistics.fmean(logs), statistics.pstdev(logs)) == pytest.approx((mu, sigma), abs=0.01)


@given(st.integers(0, 2**32), st.floats(1e-3, 1e6))
def test_gaps_are_never_negative(seed: int, mean: float) -> None:
    assert exponential(random.Random(seed), mean) >= 0


@given(st.dictionaries(st.integers(), st.floats(1e-6, 1e6), min_size=1, max_size=5), st.integers(0, 999))
def test_a_picked_value_is_one_of_the_values(weights: dict[int, float], seed: int) -> None:
    assert pick(random.Random(seed), weights) in weights
