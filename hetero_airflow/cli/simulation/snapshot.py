"""``airflow hetero snapshot``: all that a decision depends on, as JSON."""

from argparse import Namespace
from datetime import UTC, datetime

from hetero_airflow.cli.action import action
from hetero_airflow.cli.live_snapshot import live_snapshot
from hetero_airflow.cli.output import console
from hetero_airflow.store.snapshot_file import snapshot_text


@action
def snapshot(args: Namespace) -> None:
    """Print the live snapshot; ``plan --snapshot`` reads it."""
    console().out(snapshot_text(live_snapshot(), datetime.now(UTC)), end="")
