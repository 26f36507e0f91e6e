"""One workload on one cluster under several policies, as `airflow hetero simulate` runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hetero_airflow.model.worker import Worker
from hetero_airflow.policies import load_policy
from hetero_airflow.simulator.options import Options
from hetero_airflow.simulator.record import SimulationRecord
from hetero_airflow.simulator.simulation import Progress, Simulation
from hetero_airflow.simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is simulated, and how."""

    workload: Workload
    workers: tuple[Worker, ...]
    """Empty: those that the workload was recorded on."""
    policies: tuple[str, ...]
    """Names of policies; the first is what the others are compared with."""
    options: Options = field(default_factory=Options)


def run_experiment(
    experiment: Experiment, progress: Callable[[str], Progress | None] = lambda policy: None
) -> Iterator[SimulationRecord]:
    """The record of each policy, in order, as soon as it is there.

    :param progress: policy → what is told of its progress
    :raises RegistryError: no such policy
    :raises ClusterError: a job that the cluster could never run
    """
    made = [(name, load_policy(name)) for name in experiment.policies]
    for name, policy in made:
        simulation = Simulation(experiment.workload, experiment.workers, policy, name, experiment.options)
        yield simulation.run(progress(name))
