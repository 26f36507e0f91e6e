"""Tables of measured figures, as Markdown; what the sections of ``bench_schedule.py`` share."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from baselines import BASELINES
from makespan_lp import MakespanLp

from hetero_airflow.model.worker import Worker
from hetero_airflow.policies import load_policy
from hetero_airflow.policies.policy import Policy
from hetero_airflow.simulator.options import Knowledge, Options, fixed_restart_s
from hetero_airflow.simulator.reports.figures import Figures, MeasuredWindow, measure
from hetero_airflow.simulator.simulation import Simulation
from hetero_airflow.simulator.workload import Workload

HOUR_S = 3600.0

BENCHMARK_POLICIES = {**BASELINES, "makespan_lp": MakespanLp}
"""Published policies that the package does not offer."""

ON_60_S = Options(restart_s=fixed_restart_s(60.0))
"""The options for Gavel's traces: a restart costs 60 s for any number of devices."""


@dataclass(frozen=True, slots=True)
class Table:
    """A title, a sentence about it, and rows of texts."""

    title: str
    note: str
    headers: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table in Markdown, with numbers to the right."""
        lines = [f"### {self.title}", "", self.note, "", f"| {' | '.join(self.headers)} |"]
        lines.append(f"|{'|'.join(['---', *['---:'] * (len(self.headers) - 1)])}|")
        lines += (f"| {' | '.join(row)} |" for row in self.rows)
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Row:
    """A policy with one kind of knowledge."""

    label: str
    policy: str
    knowledge: Knowledge = Knowledge.SPEEDS


def make_policy(name: str) -> Policy:
    """A policy of the package or of the benchmarks."""
    make = BENCHMARK_POLICIES.get(name)
    return make() if make else load_policy(name)


def simulate(
    workload: Workload,
    workers: Sequence[Worker],
    row: Row,
    options: Options = ON_60_S,
    window: MeasuredWindow | None = None,
) -> Figures:
    """The figures of one row."""
    policy = make_policy(row.policy)
    options = replace(options, knowledge=row.knowledge)
    if window is not None:
        options = replace(options, measured=(window.first_job, window.last_job or len(workload.jobs)))
    return measure(Simulation(workload, workers, policy, row.policy, options).run(), window)


def mean_jct_hours(figures: Figures) -> str:
    """The mean job completion time in hours; a dash if no job has ended."""
    return hours(figures.all.jct_s.mean if figures.all.jct_s else None)


def hours(seconds: float | None) -> str:
    """Hours with two digits; a dash for None."""
    return "–" if seconds is None else f"{seconds / HOUR_S:.2f}"


def percent(share: float | None) -> str:
    """A share from 0 to 1 in percent."""
    return "–" if share is None else f"{100 * share:.1f}"


def spread(values: Sequence[float], digits: int) -> str:
    """The mean and, of more than one value, the standard deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"
