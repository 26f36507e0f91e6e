"""``airflow hetero dashboard``: a dashboard for Grafana."""

import sys
from argparse import Namespace

from hetero_airflow.cli.action import action
from hetero_airflow.metrics.files import packaged_text


@action
def dashboard(args: Namespace) -> None:
    """Print the dashboard as JSON."""
    sys.stdout.write(packaged_text("dashboard.json"))
