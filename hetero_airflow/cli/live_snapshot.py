"""What the scheduler sees now, and what its next cycle decides, for the commands."""

import sys
from collections.abc import Callable
from datetime import datetime

from hetero_airflow.cli.action import open_store
from hetero_airflow.cli.output import clean, console
from hetero_airflow.executor.explanation import live_snapshot as explanation
from hetero_airflow.model.plan import Plan
from hetero_airflow.model.snapshot import Snapshot


def live_snapshot() -> Snapshot:
    """The store's snapshot with the policy context that the scheduler adds."""
    return explanation.LiveSnapshots(open_store()).read_for_decisions()


def configured_policy() -> tuple[Callable[[Snapshot, datetime], Plan], float | None]:
    """The decision of the configured policy, and its period in seconds; an error of the policy goes to stderr."""
    return explanation.configured_policy(lambda text: console(sys.stderr).out(clean(text)))
