from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces.dag_streams import dag_runs, layers, random_design
from hetero_airflow.simulator.traces.job_streams import poisson_arrivals


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
