"""``airflow hetero alerts``: alert rules for Prometheus."""

import sys
from argparse import Namespace

from hetero_airflow.cli.action import action
from hetero_airflow.metrics.files import packaged_text


@action
def alerts(args: Namespace) -> None:
    """Print the rules."""
    sys.stdout.write(packaged_text("alerts.yml"))
