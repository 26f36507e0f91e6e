"""``airflow hetero schema``: the JSON schema of a device request."""

from __future__ import annotations

from argparse import Namespace

from hetero_airflow.cli.action import action
from hetero_airflow.cli.output import show_json
from hetero_airflow.model.request import DeviceRequest


@action
def schema(args: Namespace) -> None:
    """Print the schema."""
    show_json(DeviceRequest.model_json_schema())
