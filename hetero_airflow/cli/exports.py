"""Commands that print a text for other programs: decisions, snapshots, a schema, rules for Prometheus, a dashboard."""

import json
import sys
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from importlib.resources import files

from hetero_airflow import metrics
from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.live_snapshot import live_snapshot
from hetero_airflow.cli.output import console, show_json
from hetero_airflow.model.arguments import arguments_schema
from hetero_airflow.store.decision_export import decision_pages
from hetero_airflow.store.snapshot_file import snapshot_text
from hetero_airflow.units import parse_duration_s


@action
def alerts(args: Namespace) -> None:
    """Print alert rules for Prometheus."""
    sys.stdout.write(packaged_text("alerts.yml"))


@action
def dashboard(args: Namespace) -> None:
    """Print a dashboard for Grafana, as JSON."""
    sys.stdout.write(packaged_text("dashboard.json"))


def packaged_text(name: str) -> str:
    """The text of ``alerts.yml`` or ``dashboard.json``."""
    return (files(metrics) / name).read_text(encoding="utf-8")


@action
def decisions(args: Namespace) -> None:
    """Print a JSON object per line and decision, the oldest first.

    :raises RequestError: ``--since`` is no duration
    """
    since = datetime.now(UTC) - timedelta(seconds=parse_duration_s(args.since, "--since"))
    output = console()
    for page in decision_pages(database(), since):
        output.out("\n".join(map(json.dumps, page)))


@action
def schema(args: Namespace) -> None:
    """Print the JSON schema of the arguments of a device task."""
    show_json(arguments_schema())


@action
def snapshot(args: Namespace) -> None:
    """Print all that a decision depends on, as JSON; ``plan --snapshot`` reads it."""
    console().out(snapshot_text(live_snapshot(), datetime.now(UTC)), end="")
