"""The arguments of ``airflow hetero plan``: the tasks of a DAG file, and the snapshot to rehearse them on."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from hetero_airflow.cli.simulation.dag_file import planned_tasks, read_dag
from hetero_airflow.cli.simulation.task_history import plain_durations
from hetero_airflow.errors import SettingsError, StoreError, shorten
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.policies import load_policy
from hetero_airflow.simulator.planned_tasks import PlannedTask
from hetero_airflow.simulator.rehearsal import Rehearsal, rehearse
from hetero_airflow.store.snapshot_file import read_snapshot
from hetero_airflow.units import parse_duration_s


@dataclass(frozen=True, slots=True)
class PlanArguments:
    """Everything that a rehearsal needs."""

    dag_id: str
    tasks: Sequence[PlannedTask]
    snapshot: Snapshot
    source: str
    """The origin of the snapshot, as a text."""
    taken_at: datetime
    starts_in_s: float
    assumed_s: float
    deadline_s: float | None
    policy: str

    def rehearse(self) -> Rehearsal:
        """The course of the tasks under the policy."""
        return rehearse(
            self.snapshot,
            self.tasks,
            load_policy(self.policy),
            self.taken_at,
            starts_in_s=self.starts_in_s,
            assumed_s=self.assumed_s,
            deadline_s=self.deadline_s,
        )


def read_plan_arguments(
    args: Namespace, policy: str, now: datetime, live: Callable[[], Snapshot], database: Callable[[], Engine]
) -> PlanArguments:
    """Read the arguments, the DAG file and the snapshot.

    With a saved snapshot, a database is optional; without one, the durations of plain tasks are unknown.

    :param policy: the configured policy, used if the arguments name none
    :raises HeteroError: an argument that can't be read, or a DAG file without the requested DAG
    """
    dag = read_dag(Path(args.dag_file), args.dag_id)
    if args.snapshot is None:
        snapshot, taken_at, source = live(), now, "the workers as they are now"
        durations = plain_durations(database(), dag.dag_id)
    else:
        snapshot, taken_at = read_snapshot(_read_file(args.snapshot))
        source = f"the snapshot of {taken_at:%Y-%m-%d %H:%M} UTC"
        try:
            durations = plain_durations(database(), dag.dag_id)
        except StoreError:
            durations = {}
    at = taken_at if args.at is None else _read_time(args.at)
    limit_s = None if dag.dagrun_timeout is None else dag.dagrun_timeout.total_seconds()
    return PlanArguments(
        dag.dag_id,
        tuple(planned_tasks(dag, at, _read_conf(args.conf), durations)),
        snapshot,
        source,
        taken_at,
        max((at - taken_at).total_seconds(), 0.0),
        parse_duration_s(args.assume, "--assume"),
        limit_s if args.deadline is None else parse_duration_s(args.deadline, "--deadline"),
        args.policy or policy,
    )


def _read_file(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"--snapshot {shorten(name)}",
            found=type(error).__name__,
            remedy="Save one: airflow hetero snapshot > snapshot.json",
        ) from error


def _read_time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise SettingsError(
            f"--at {shorten(text)}",
            found="a text that is not a time",
            remedy="Write it as 2026-01-31T18:00 (UTC) or 2026-01-31T18:00+02:00",
        ) from error
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _read_conf(text: str | None) -> Mapping[str, Any]:
    try:
        conf = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        conf = None
    if not isinstance(conf, dict):
        raise SettingsError(
            f"--conf {shorten(text)}",
            found="a text that is not a JSON object",
            remedy='Write it as \'{"model": "large"}\'',
        )
    return conf
