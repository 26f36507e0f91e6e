"""What ``airflow hetero`` offers. Every call of ``airflow`` imports this module, so it imports nothing heavy."""

from __future__ import annotations

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

_JSON = Arg(("--json",), action="store_true", default=False, help="Print JSON for programs, not a table for people")
_TASK = (
    Arg(("dag_id",), help="The id of the DAG"),
    Arg(("run_id",), help="The id of the DAG run"),
    Arg(("task_id",), help="The id of the task"),
)
_MAP_INDEX = Arg(("--map-index",), type=int, default=-1, help="Of a mapped task: which instance, from 0")


def get_commands() -> list[CLICommand]:
    """The commands, as Airflow's command line takes them from the provider info.

    >>> [command.name for command in get_commands()[0].subcommands]
    ['devices', 'workers', 'queue', 'explain', 'config', 'schema']
    """
    return [
        GroupCommand(
            name="hetero",
            help="See devices, who uses them, who waits for them and why",
            subcommands=(
                _command("devices", "Look at the devices of this machine now; needs no database", _JSON),
                _command("workers", "List the known workers, their devices and how much of them is leased", _JSON),
                _command("queue", "List the tasks that wait for devices, in order, then those that hold some", _JSON),
                _command(
                    "explain", "Say why a task waits, or why it got the devices that it has", *_TASK, _MAP_INDEX, _JSON
                ),
                _command(
                    "config",
                    "Print the settings that an installation needs, or check them",
                    Arg(("--env",), action="store_true", default=False, help="Print them as environment variables"),
                    Arg(
                        ("--check",),
                        action="store_true",
                        default=False,
                        help="Say what this installation lacks and what that costs; exit code 1 if anything",
                    ),
                ),
                _command("schema", "Print the JSON schema of a device request"),
            ),
        )
    ]


def _command(name: str, help: str, *args: Arg) -> ActionCommand:
    return ActionCommand(
        name=name,
        help=help,
        func=lazy_load_command(f"hetero_airflow.cli.actions.{name}"),
        args=args,
    )
