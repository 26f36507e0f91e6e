"""The arguments of ``airflow hetero simulate``, read into an experiment. It reads the named files and nothing else."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Collection
from pathlib import Path

from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.model.device import device_class
from hetero_airflow.model.restart import usual_restart_s
from hetero_airflow.model.worker import Worker
from hetero_airflow.simulator.cluster import parse_cluster
from hetero_airflow.simulator.experiment import Experiment
from hetero_airflow.simulator.options import Knowledge, Options, fixed_restart_s
from hetero_airflow.simulator.reports.figures import MeasuredWindow
from hetero_airflow.simulator.traces import load_trace
from hetero_airflow.simulator.workload import Workload
from hetero_airflow.units import parse_duration_s

LoadHistory = Callable[[float, Collection[str]], Workload]
"""(days, device classes) → the workload of those days, with its speeds on those classes."""

_MAX_DAYS = 36_500

_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")


def read_experiment(
    args: Namespace, policy: str, history: LoadHistory, known: Callable[[], tuple[Worker, ...]]
) -> tuple[Experiment, MeasuredWindow]:
    """The experiment, and the window of jobs that its figures cover.

    :param policy: the configured policy, used if the arguments name none
    :param history: gives this installation's history, used if no trace is named
    :param known: gives this installation's workers, used if neither the arguments nor the trace name a cluster
    :raises HeteroError: an argument that can't be read, or a trace that does not exist
    """
    trace = None if args.trace is None else load_trace(args.trace, _folder(args.traces))
    workers = parse_cluster(args.cluster) if args.cluster else (trace.workers if trace else ()) or known()
    classes = {device_class(device) for worker in workers for device in worker.devices}
    workload = trace or history(_days(args.history), classes)
    if not workers:
        raise SettingsError(
            f"simulate {shorten(workload.name)}",
            found="no cluster: neither the workload nor this installation has workers",
            remedy="Name one: --cluster v100=12,p100=3x4",
        )
    first, last = _jobs(args.jobs, len(workload.jobs))
    options = Options(
        restart_s=usual_restart_s if args.restart_cost is None else fixed_restart_s(_seconds(args, "restart_cost")),
        knowledge=Knowledge(args.knowledge),
        can_preempt=not args.no_preemption,
        cycle_s=_seconds(args, "cycle"),
        mean_uptime_s=_seconds(args, "uptime"),
        repair_s=_seconds(args, "repair"),
        checkpoint_s=_seconds(args, "checkpoint"),
        until_s=_seconds(args, "until"),
        measured=(first, last),
        seed=args.seed,
    )
    names = dict.fromkeys([args.policy or policy, *filter(None, (args.compare or "").split(","))])
    return Experiment(workload, workers, tuple(names), options), MeasuredWindow(first, last)


def _days(days: float) -> float:
    if not 0 < days <= _MAX_DAYS:
        raise SettingsError(
            f"--history {days:g}", found="a number out of range", remedy=f"Use more than 0 and at most {_MAX_DAYS} days"
        )
    return days


def _folder(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _seconds(args: Namespace, name: str) -> float:
    """The duration of an option, at least 0; the default of `Options` if it was not given."""
    fields = {"cycle": "cycle_s", "uptime": "mean_uptime_s", "repair": "repair_s", "checkpoint": "checkpoint_s"}
    text = getattr(args, name)
    if text is None:
        return float(getattr(Options(), fields.get(name, "until_s")))
    return 0.0 if text in ("0", "0s") else parse_duration_s(_number(text), f"--{name.replace('_', '-')}")


def _number(text: str) -> float | str:
    """A number without a unit is in seconds."""
    try:
        return float(text)
    except ValueError:
        return text


def _jobs(text: str | None, total: int) -> tuple[int, int]:
    """The numbers of the first job and of the one after the last, read from a text such as ``4000..4999``."""
    if text is None:
        return 0, total
    match = _RANGE.fullmatch(text)
    if match is None or not int(match[1]) <= int(match[2]) < total:
        raise SettingsError(
            f"--jobs {shorten(text)}",
            found=f"not a range within the {total} jobs",
            remedy=f"Write the first and the last job, such as 0..{total - 1}",
        )
    return int(match[1]), int(match[2]) + 1
