from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection

import pytest

from hetero_airflow.cli.simulation.simulate import read_experiment
from hetero_airflow.errors import HeteroError
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.options import Knowledge, Options, usual_restart_s
from hetero_airflow.simulator.reports.figures import MeasuredWindow
from hetero_airflow.simulator.workload import Job, Workload

NAMES = ("trace", "traces", "cluster", "policy", "compare", "restart_cost", "jobs", "until", "cycle", "uptime")
JOBS = tuple(Job(f"j{n}", float(n), DeviceRequest.parse("gpu"), 1.0) for n in range(10))


class Installation:
    """What it is asked for."""

    def __init__(self, *workers) -> None:
        self.workers = workers
        self.arguments: tuple[float, Collection[str]] | None = None

    def history(self, days: float, classes: Collection[str]) -> Workload:
        self.arguments = (days, classes)
        return Workload("history", JOBS)

    def read(self, **options):
        given = dict.fromkeys((*NAMES, "repair", "checkpoint")) | {"history": 30, "knowledge": "speeds", "seed": 0}
        given["no_preemption"] = False
        return read_experiment(Namespace(**given | options), "fifo", self.history, lambda: self.workers)


def test_without_options_the_history_runs_on_the_known_workers():
    workers = parse_cluster("v100=2")
    installation = Installation(*workers)
    experiment, window = installation.read()
    assert installation.arguments == (30, {"nvidia/v100", "generic/x86-64"})
    assert (experiment.workload.name, experiment.workers, experiment.policies) == ("history", workers, ("fifo",))
    assert (experiment.options, window) == (Options(measured=(0, 10)), MeasuredWindow(0, 10))


def test_options_say_what_is_simulated():
    experiment, window = Installation().read(
        cluster="v100=2", policy="priority", compare="fifo,priority,round_robin", restart_cost="90", jobs="2..4",
        until="2h", cycle="5s", uptime="1d", repair="10m", checkpoint="0", seed=7, knowledge="oracle",
        no_preemption=True,
    )  # fmt: skip
    assert experiment.policies == ("priority", "fifo", "round_robin")
    assert window == MeasuredWindow(2, 5)
    options = experiment.options
    assert [options.restart_s(n) for n in (1, 8, 9)] == [90.0, 90.0, 90.0]
    assert (options.cycle_s, options.mean_uptime_s, options.repair_s) == (5.0, 86400.0, 600.0)
    assert (options.checkpoint_s, options.until_s, options.seed) == (0.0, 7200.0, 7)
    assert (options.knowledge, options.measured, options.can_preempt) == (Knowledge.ORACLE, (2, 5), False)


def test_the_usual_restart_costs_more_for_more_devices():
    assert Installation(*parse_cluster("v100=1")).read()[0].options.restart_s is usual_restart_s


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "simulate 'history'; found no cluster"),
        ({"history": float("nan")}, "--history nan can't be used; found a number out of range"),
        ({"history": 1e300}, "--history 1e+300 can't be used; found a number out of range"),
        ({"history": -1.0}, "--history -1 can't be used; found a number out of range"),
        ({"cluster": "v100"}, "Cluster 'v100' can't be used; found 'v100'. Write it as"),
        (
            {"cluster": "v100=1", "jobs": "5..99"},
            "--jobs '5..99' can't be used; found no range within the 10 jobs. Write the first",
        ),
        ({"cluster": "v100=1", "jobs": "5..4"}, "--jobs '5..4' can't be used; found no range"),
        (
            {"cluster": "v100=1", "restart_cost": "-1"},
            "--restart-cost=-1.0 can't be used; found a time that is not above 0 s",
        ),
        ({"cluster": "v100=1", "restart_cost": "nan"}, "--restart-cost=nan"),
        ({"cluster": "v100=1", "until": "soon"}, "--until='soon' can't be used; found no duration"),
        ({"trace": "nonsense"}, "The trace 'nonsense' can't be used; found no name of a trace"),
    ],
)
def test_bad_options_are_errors_that_say_so(options, error):
    with pytest.raises(HeteroError) as caught:
        Installation().read(**options)
    assert error in str(caught.value)
