"""The lower bounds of a report: worked out by hand, and below what policies reach."""

import pytest

from hetero_airflow.policies.fifo import Fifo
from hetero_airflow.policies.las import Las
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.record import JobOutcome, JobRecord, RunInterval
from hetero_airflow.simulator.reports.figures import measure
from hetero_airflow.simulator.reports.lower_bounds import least_makespan_s, least_mean_jct_s
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.traces import load_trace

V100, CPU = "nvidia/v100", "generic/x86-64"


def a_job(submitted_s, alone_s, device_class=V100):
    """One that ran for long on one device."""
    interval = RunInterval(submitted_s, 999.0, "w", device_class, 1.0)
    outcome = JobOutcome.FINISHED
    return JobRecord("a", "g", "t", submitted_s, submitted_s, 999.0, outcome, 1.0, (interval,), alone_s)


def test_jobs_that_meet_on_one_device_wait_for_the_shortest_first():
    jobs = [a_job(0.0, 10.0), a_job(1.0, 2.0), a_job(1.0, 20.0)]
    assert least_mean_jct_s(jobs, {V100: 1}) == pytest.approx((12 + 2 + 31) / 3)
    assert least_makespan_s(jobs, {V100: 1}) == 32.0


def test_jobs_on_enough_devices_take_their_own_time():
    jobs = [a_job(0.0, 10.0), a_job(1.0, 2.0), a_job(1.0, 20.0)]
    assert least_mean_jct_s(jobs, {V100: 30}) == pytest.approx(32 / 3)
    assert least_makespan_s(jobs, {V100: 30}) == 21.0


def test_a_job_on_cpus_never_waits_for_accelerators_in_a_bound():
    jobs = [a_job(0.0, 10.0), a_job(0.0, 100.0, CPU)]
    assert least_mean_jct_s(jobs, {V100: 1}) == 55.0
    assert least_mean_jct_s(jobs[1:], {}) == 100.0
    assert least_makespan_s(jobs, {V100: 1}) == 100.0


def test_without_jobs_there_is_no_bound():
    assert (least_mean_jct_s([], {V100: 1}), least_makespan_s([], {V100: 1})) == (None, None)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", [Fifo, Las])
def test_no_policy_is_below_the_bounds(policy, seed):
    workload = load_trace(f"generated/bursty_rate30_jobs60_seed{seed}")
    figures = measure(Simulation(workload, parse_cluster("a100=2x8,v100=4"), policy(), "policy").run())
    assert 0 < figures.least_mean_jct_s <= figures.all.jct_s.mean * (1 + 1e-9)
    assert 0 < figures.least_makespan_s <= figures.makespan_s * (1 + 1e-9)
