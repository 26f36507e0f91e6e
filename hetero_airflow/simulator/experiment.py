"""One workload on one cluster under several policies, as `airflow hetero simulate` runs them."""

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
    """A workload, a cluster, and the policies to compare."""

    workload: Workload
    workers: tuple[Worker, ...]
    """Empty: the workers of the workload."""
    policies: tuple[str, ...]
    """Names of policies; the others are compared with the first."""
    options: Options = field(default_factory=Options)


def run_experiment(
    experiment: Experiment, progress: Callable[[str], Progress | None] = lambda policy: None
) -> Iterator[SimulationRecord]:
    """The record of each policy, in order, as soon as its simulation ends.

    :param progress: policy → function that is called with its progress
    :raises RegistryError: there is no such policy
    :raises ClusterError: a job that the cluster could never run
    """
    policies = [(name, load_policy(name)) for name in experiment.policies]  # an unknown name fails before the first run
    for name, policy in policies:
        simulation = Simulation(experiment.workload, experiment.workers, policy, name, experiment.options)
        yield simulation.run(progress(name))
