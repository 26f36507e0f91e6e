"""``airflow hetero schema``: the JSON schema of the arguments of a device task."""

from argparse import Namespace

from hetero_airflow.cli.action import action
from hetero_airflow.cli.output import show_json
from hetero_airflow.model.arguments import arguments_schema


@action
def schema(args: Namespace) -> None:
    """Print the schema."""
    show_json(arguments_schema())
