"""``airflow hetero decisions``: the stored decisions as JSON lines, for other programs."""

import json
from argparse import Namespace
from datetime import UTC, datetime, timedelta

from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.output import console
from hetero_airflow.store.decision_export import decision_pages
from hetero_airflow.units import parse_duration_s


@action
def decisions(args: Namespace) -> None:
    """Print a JSON object per line and decision, the oldest first.

    :raises RequestError: ``--since`` is no duration
    """
    since = datetime.now(UTC) - timedelta(seconds=parse_duration_s(args.since, "--since"))
    output = console()
    for page in decision_pages(database(), since):
        output.out("\n".join(map(json.dumps, page)))
