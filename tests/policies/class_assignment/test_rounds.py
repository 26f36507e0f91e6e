"""Linear programs in rounds: the fractions, and their effect over time."""

import numpy as np
import pytest

from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.policies.class_assignment.rounds import RoundPolicy, fractions
from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.max_min_fairness import MaxMinFairness
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge, Options, fixed_restart_s
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import Job, Workload
from tests.benchmarks.makespan_lp import MakespanLp

V100, K80 = "nvidia/v100", "nvidia/k80"
ANY = DeviceRequest.parse({"v100", "k80"})
FREE = {"restart_s": fixed_restart_s(0.0)}


def simulate(policy, *jobs: Job, cluster: str, **options):
    workload = Workload("test", jobs)
    return Simulation(workload, parse_cluster(cluster), policy, "test", Options(**FREE | options)).run()


def test_the_least_is_as_great_as_can_be_and_the_rest_is_used():
    """Gavel's example: the job that gains most from the fast class gets it; no job gets less than an equal share."""
    allocation = fractions(((1.0, 0.25), (1.0, 1.0)), (0.625, 1.0), (1, 1), (1, 1))
    assert allocation == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0]]), abs=1e-6)


def test_fractions_keep_to_the_devices_and_to_the_time():
    rng = np.random.default_rng(7)
    speeds = rng.uniform(0.05, 1.0, (9, 3))
    counts, capacities = (1, 2, 4, 1, 1, 8, 1, 2, 1), (4, 3, 8)
    allocation = fractions(tuple(map(tuple, speeds.tolist())), (1.0,) * 9, counts, capacities)
    assert (allocation >= -1e-9).all()
    assert (allocation.sum(axis=1) <= 1 + 1e-9).all()
    assert (np.array(counts) @ allocation <= np.array(capacities) + 1e-6).all()
    gains = (allocation * speeds).sum(axis=1)
    equal_split = np.array(capacities) / (np.array(counts)[:, None] * 9 * np.ones(3))
    assert gains.min() >= (np.minimum(equal_split, 1 / 3) * speeds).sum(axis=1).min() - 1e-9


def test_equal_jobs_share_alike_in_an_optimum():
    rng = np.random.default_rng(3)
    kinds = rng.integers(0, 4, 30)
    speeds, counts = rng.uniform(0.05, 1.0, (4, 3))[kinds], np.array([1, 2, 4, 1])[kinds]
    capacities, norms = (6, 5, 9), np.array([1.0, 0.5, 2.0, 1.5])[kinds]

    def solve(norms):
        shares = fractions(tuple(map(tuple, speeds.tolist())), tuple(norms), tuple(counts.tolist()), capacities)
        gains = (shares * speeds).sum(axis=1) / norms
        assert (counts @ shares <= np.array(capacities) + 1e-6).all()
        return shares, gains.min(), gains.mean()

    shares, least, mean = solve(norms)
    _, least_apart, mean_apart = solve(norms * (1 + 1e-9 * np.arange(30)))
    assert (least, mean) == pytest.approx((least_apart, mean_apart), rel=1e-5)
    for kind in range(4):
        assert np.ptp(shares[kinds == kind], axis=0).max() == 0


def test_two_jobs_share_one_device_by_turns():
    jobs = [Job(name, 0.0, ANY, 36_000.0, {V100: 1.0}) for name in "ab"]
    record = simulate(MaxMinFairness(), *jobs, cluster="v100=1", until_s=36_000.0)
    held = [sum(part.end_s - part.start_s for part in job.intervals) for job in record.jobs]
    assert held == pytest.approx([18_000.0, 18_000.0], rel=0.05)
    assert min(job.preemptions for job in record.jobs) > 5


def test_every_job_gets_at_least_what_an_equal_share_of_each_class_gives():
    speeds = ({V100: 1.0, K80: 0.9}, {V100: 1.0, K80: 0.1}, {V100: 1.0, K80: 0.5})
    jobs = [Job(f"j{n}", 0.0, ANY, 1e6, class_speeds, task=f"t{n}") for n, class_speeds in enumerate(speeds)]
    record = simulate(MaxMinFairness(), *jobs, cluster="v100=1,k80=1", until_s=72_000.0)
    for job, class_speeds in zip(record.jobs, speeds, strict=True):
        done = sum((part.end_s - part.start_s) * class_speeds[part.device_class] for part in job.intervals)
        assert done > 0.95 * 72_000.0 * (class_speeds[V100] + class_speeds[K80]) / 3


def test_the_longest_job_is_not_left_for_the_end():
    jobs = [Job(f"a short one, {n}", 0.0, ANY, 3600.0, {V100: 1.0}) for n in range(4)]
    long = Job("the long one", 0.0, ANY, 14_400.0, {V100: 1.0})
    ends = [
        max(job.finished_s for job in simulate(policy, *jobs, long, cluster="v100=2", knowledge=Knowledge.ORACLE).jobs)
        for policy in (MakespanLp(), Fifo())
    ]
    assert ends[1] == 21_600.0
    assert ends[0] < 0.8 * ends[1]


def test_a_job_that_keeps_its_devices_counts_in_the_fractions_of_all():
    """Else the fractions change with each minimum run time, and the jobs take turns more often."""
    seen = []

    def norm(candidate, speeds, problem):
        seen.append((sum(problem.capacities.values()), len(problem.candidates)))
        return 1.0

    jobs = [Job(name, at_s, ANY, 3600.0, {V100: 1.0, K80: 0.5}) for name, at_s in (("a", 0.0), ("b", 10.0))]
    simulate(RoundPolicy("recording", norm), *jobs, cluster="v100=1,k80=1", until_s=60.0)
    assert set(seen) == {(2, 1), (2, 2)}
