"""The console script ``hetero``: the commands of ``airflow hetero`` without the seconds of Airflow's import.

It reads Airflow's options itself. The commands that need Airflow go to ``airflow hetero``.
"""

import os
import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from hetero_airflow.cli.commands import COMMANDS, HELP
from hetero_airflow.contract.airflow_options import read_without_airflow
from hetero_airflow.errors import HeteroError

WITHOUT_AIRFLOW = frozenset(
    {
        *("devices", "models", "workers", "drain", "undrain", "top", "queue", "explain", "decisions", "usage"),
        *("enroll", "token", "tokens", "revoke", "forget", "snapshot", "alerts", "dashboard", "schema"),
    }
)
"""The commands that need no part of Airflow."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    args = _parser().parse_args(given)
    if args.command.name not in WITHOUT_AIRFLOW:
        _exec_airflow(given)
    try:
        read_without_airflow()
    except HeteroError as error:
        sys.exit(str(error))
    args.command.run(args)


def _parser() -> ArgumentParser:
    parser = ArgumentParser("hetero", description=HELP)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        own = commands.add_parser(command.name, help=command.help, description=command.help)
        for arg in command.args:
            arg.add_to_parser(own)
        own.set_defaults(command=command)
    return parser


def _exec_airflow(arguments: Sequence[str]) -> None:
    """Become ``airflow hetero``, of the same environment if it has one."""
    beside = os.path.join(os.path.dirname(sys.executable), "airflow")
    path = beside if os.path.exists(beside) else shutil.which("airflow")
    if path is None:
        sys.exit("This command needs Airflow; found no program airflow. Install apache-airflow here.")
    os.execv(path, [path, "hetero", *arguments])  # noqa: S606  no shell is wanted
