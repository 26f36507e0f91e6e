"""All commands of ``airflow hetero`` and ``hetero``. Every call of ``airflow`` imports this module, so it imports
nothing heavy."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand


class Arg:
    """An argument of a command, as `argparse` takes it."""

    def __init__(self, flags: tuple[str, ...], **kwargs: Any) -> None:
        self.flags = flags
        self.kwargs = kwargs

    def add_to_parser(self, parser: ArgumentParser) -> None:
        """Add it."""
        parser.add_argument(*self.flags, **self.kwargs)


def _flag(name: str, help: str) -> Arg:
    return Arg((name,), action="store_true", default=False, help=help)


class _AmongOptions(Arg):
    """A positional argument whose command takes options between its positional arguments too.

    argparse alone decides at the first option which names were given, and refuses those that come after it.
    """

    def add_to_parser(self, parser: ArgumentParser) -> None:
        """Add it, and let the parser read all options before all names."""
        super().add_to_parser(parser)
        plain = parser.parse_known_args

        def parse(args: Sequence[str] | None = None, namespace: Namespace | None = None) -> tuple[Namespace, list[str]]:
            setattr(parser, "parse_known_args", plain)  # noqa: B010  which the intermixed parsing calls
            try:
                return parser.parse_known_intermixed_args(args, namespace)
            finally:
                setattr(parser, "parse_known_args", parse)  # noqa: B010

        setattr(parser, "parse_known_args", parse)  # noqa: B010  the one method that a group of commands calls


class Command(NamedTuple):
    """A command: its name, what it does, the module and the function of its action, and its arguments."""

    name: str
    help: str
    path: str
    args: tuple[Any, ...]

    def run(self, args: Namespace) -> Any:
        """Import the action and carry it out."""
        module, _, function = f"hetero_airflow.cli.{self.path}".rpartition(".")
        action: Callable[[Namespace], Any] = getattr(import_module(module), function)
        return action(args)


_JSON = _flag("--json", "Print JSON for programs, not a table for people")
_SITE = Arg(("--site",), metavar="SITE", help="Show only the workers of this site (label hetero/site)")
_TASK = (
    _AmongOptions(("dag_id",), help="The id of the DAG"),
    Arg(("run_id",), nargs="?", help="The id of the DAG run; default: the newest run"),
    Arg(("task_id",), help="The id of the task"),
)
_TASKS = (
    _TASK[0],
    Arg(("task_ids",), metavar="task_id", nargs="+", help="The ids of tasks; of a mapped task, all instances"),
    Arg(("--run-id",), metavar="RUN", help="The id of the DAG run; needed if these tasks wait or run in several"),
    Arg(("--map-index",), type=int, help="Only this instance of a mapped task, from 0"),
)
_PRIORITY = Arg(
    ("--priority",), choices=("urgent", "high", "medium", "low"), help="The class; default: the next higher one"
)
_TARGET = Arg(("target",), metavar="WORKER[/DEVICE]", help="An id that `airflow hetero workers --json` shows")
_WORKER = Arg(("worker",), metavar="WORKER", help="The worker's name; by default an agent uses its host's name")
_CACHE = (
    Arg(("what",), choices=("ls", "prune", "pin", "unpin"), help="List; remove what is not in use; keep; end a pin"),
    Arg(("url",), nargs="?", help="An object, or a folder with all below it, such as s3://bucket/folder"),
)
_JOIN = (
    Arg(("--names",), required=True, metavar="PATTERN", help="The workers' names, as in a shell, such as 'gpu-*'"),
    Arg(("--workers",), type=int, default=100, metavar="N", help="How many of them at the same time; default: 100"),
    Arg(("--valid",), metavar="TIME", default="30d", help="How long workers can enrol with it; default: 30d"),
)
_REVOKED = (
    Arg(("worker",), metavar="WORKER", nargs="?", help="The worker's name"),
    Arg(("--token",), metavar="ID", help="A join token instead, by the id that `airflow hetero tokens` shows"),
)
_FORGOTTEN = Arg(("worker",), metavar="NAME", help="The name that `airflow hetero workers` shows")
_AGENT = (
    Arg(("--url",), required=True, help="The address of Airflow's API server, as browsers use it"),
    Arg(("--name",), metavar="WORKER", help="The worker's name; default: the host's name"),
    Arg(("--engine",), default="celery", help="The engine that runs the tasks on this host"),
    Arg(("--labels",), metavar="JSON", help="The worker's labels; default: the option labels of the section hetero"),
    Arg(("--user",), metavar="NAME", help="The user that runs the worker's tasks; default: the agent's own"),
)
_DECISIONS = Arg(
    ("--since",), metavar="TIME", default="1d", help="How far back: a duration such as 30m, 6h or 7d; default: 1d"
)
_USAGE = (
    Arg(
        ("--by",),
        choices=("dag", "task", "owner", "team", "model", "worker", "device", "day"),
        default="dag",
        help="What to add up. Of dag, task, owner and team it shows what they held; of the others also what was free",
    ),
    Arg(("--since",), metavar="TIME", default="30d", help="How far back: 12h, 30d, or a date; default: 30d"),
    Arg(("--until",), metavar="DATE", help="The end: a date or a time, ISO 8601; default: now"),
    _flag("--csv", "Print comma-separated values"),
)
_MAP_INDEX = Arg(("--map-index",), type=int, default=-1, help="The instance of a mapped task, from 0")
_DRAIN = (
    _TARGET,
    _flag("--move", "Tell the tasks there to save at their next checkpoint and to continue elsewhere"),
    Arg(("--reason",), metavar="TEXT", default="", help="The reason that waiting tasks show"),
)
_PLAN = (
    Arg(("dag_file",), help="The path of a DAG file; it is parsed, not run"),
    Arg(("--dag-id",), help="The DAG, if the file has several"),
    Arg(("--at",), metavar="TIME", help="The start of the run, ISO 8601; default: now"),
    Arg(("--conf",), metavar="JSON", help="The run's conf, for templates in device requests"),
    Arg(("--snapshot",), metavar="FILE", help="A saved snapshot to use instead of the live one"),
    Arg(
        ("--cluster",),
        metavar="FILE",
        help="Simulated devices instead of the live ones: a file, or a text, such as v100=12,p100=3x4",
    ),
    Arg(("--assume",), metavar="TIME", default="10m", help="The duration of a task whose duration is unknown"),
    Arg(("--deadline",), metavar="TIME", help="The longest duration of the run; default: the DAG's dagrun_timeout"),
    Arg(("--policy",), help="The policy; default: the configured one"),
)
_SIMULATE = (
    Arg(
        ("--trace",),
        help="A generated trace, such as generated/bursty_rate12_jobs200_seed1, or a public one, such as "
        "gavel/h300_seed0; default: this installation's history",
    ),
    Arg(("--traces",), help="The folder of the public traces; default: HETERO_AIRFLOW_TRACES"),
    Arg(("--history",), type=float, default=30, metavar="DAYS", help="How many days of this installation's history"),
    Arg(("--cluster",), help="Simulated devices: v100=12,p100=3x4 is one worker with 12 and three with 4"),
    Arg(("--policy",), help="The policy; default: the configured one"),
    Arg(("--compare",), metavar="POLICIES", help="Other policies to compare: fifo,makespan"),
    Arg(
        ("--knowledge",),
        choices=("none", "learned", "progress", "half", "speeds", "oracle"),
        default="speeds",
        help="What policies know: nothing, what ended runs show, also what tasks report (all jobs or half of them), "
        "the speeds on each device, or also the durations",
    ),
    Arg(
        ("--restart-cost",),
        metavar="TIME",
        help="The cost of a restart after a preemption; default: 7, 30 or 60 s for 1, up to 8 or more devices",
    ),
    _flag("--no-preemption", "A running task keeps its devices until it ends"),
    Arg(("--jobs",), metavar="FIRST..LAST", help="The numbers of the jobs that figures cover; others only compete"),
    Arg(("--until",), metavar="TIME", help="The end of the simulation"),
    Arg(("--cycle",), metavar="TIME", help="The time between decisions, like a heartbeat; default: at each event"),
    Arg(("--uptime",), metavar="TIME", help="The mean time until a worker fails; default: never"),
    Arg(("--repair",), metavar="TIME", help="How long a failed worker is away; default: 1h"),
    Arg(("--checkpoint",), metavar="TIME", help="How often jobs save, for failures; default: 30m"),
    Arg(("--seed",), type=int, default=0, help="The seed of the failures"),
    Arg(("--html",), metavar="FILE", help="Write a report with charts to this file"),
    _flag("--timing", "Also show how long decisions took, in JSON too"),
)
_RENDER = (
    Arg(("dag_id",), help="The id of the DAG; its file is parsed"),
    Arg(("task_id",), help="The id of the task"),
    _MAP_INDEX,
    _flag("--dra", "Use a claim (dynamic resource allocation)"),
    Arg(("-o", "--output"), choices=("yaml", "json"), default="yaml", help="yaml or json"),
)
_CONFIG = (
    _flag("--env", "Print lines for a shell: export NAME=..."),
    _flag("--check", "Show what this installation lacks and what that costs; exit code 1 if it lacks anything"),
)
_DEVICE = Arg(
    ("--device",),
    nargs="+",
    default=["gpu", "npu", "tpu", "fpga", "cpu"],
    help="The device that the task requests, or alternatives; default: an accelerator, else a CPU core",
)
_CLEANUP = _flag("--yes", "Remove it; without this, the command only shows what it would remove")


_workers, _requests = "workers.{0}.{0}", "requests.{0}.{0}"
_simulation, _setup = "simulation.{0}.{0}", "setup.{0}.{0}"
_drains, _enrolment, _changes = "workers.drains.{0}", "workers.enrolment.{0}", "requests.changes.{0}"
_exports = "exports.{0}"


def _command(path: str, name: str, help: str, *args: Arg) -> Command:
    return Command(name, help, path.format(name), args)


COMMANDS: tuple[Command, ...] = (
    _command(
        _workers,
        "devices",
        "Show the devices of this machine; needs no database",
        _flag("--features", "Show what each device computes fast, and what a task there trains in"),
        _JSON,
    ),
    _command(_workers, "models", "List the models that a request can name, and what each matches here", _JSON),
    _command(
        _workers, "cache", "Show what this host has cached of object stores; remove it, or keep it", *_CACHE, _JSON
    ),
    _command(_workers, "workers", "List the workers, their devices and what is leased of them", _SITE, _JSON),
    _command(_workers, "worker", "Run this host's agent: report its devices to Airflow's API server", *_AGENT),
    _command(_enrolment, "enroll", "Print a secret, once, with which an agent enrols for a worker", _WORKER),
    _command(_enrolment, "token", "Print a token, once, with which workers enrol by themselves", *_JOIN),
    _command(_enrolment, "tokens", "List the join tokens, and how many workers each has enrolled"),
    _command(_enrolment, "revoke", "Refuse a worker's agent and give it no new task, or end a join token", *_REVOKED),
    _command(_enrolment, "forget", "Delete a lost worker, with its key and holds, from the database", _FORGOTTEN),
    _command(_drains, "drain", "Give a worker or a device no new task; its tasks finish, or move", *_DRAIN),
    _command(_drains, "undrain", "Let a worker or a device take tasks again, also after a quarantine", _TARGET),
    _command(
        _workers,
        "top",
        "Show devices and the queue live, as htop does; q quits",
        _flag("--once", "Print one picture and end, as for a pipe"),
    ),
    _command(_requests, "queue", "List the tasks that wait for devices, then those that hold some", _JSON),
    _command(
        _requests,
        "explain",
        "Explain why a task waits, or why it got its devices",
        *_TASK,
        _MAP_INDEX,
        _flag("--watch", "Show it again every two seconds, until q is pressed"),
        _JSON,
    ),
    _command(_exports, "decisions", "Print the stored decisions as JSON lines, the oldest first", _DECISIONS),
    _command(_requests, "usage", "Show how long devices were held, free or on hold, and by whom", *_USAGE, _JSON),
    _command(_changes, "cancel", "Let waiting or running device tasks fail, without a retry", *_TASKS),
    _command(_changes, "pause", "Give waiting tasks no devices until `unpause`", *_TASKS),
    _command(_changes, "unpause", "Let paused tasks wait for devices again", *_TASKS),
    _command(_changes, "bump", "Give waiting tasks a higher priority class", *_TASKS, _PRIORITY),
    _command(
        _simulation,
        "plan",
        "Rehearse a run of a DAG on the current workers; exit code 1 if anything would go wrong",
        *_PLAN,
        _JSON,
    ),
    _command(
        _simulation,
        "simulate",
        "Run a trace, or this installation's history, through policies on a simulated cluster",
        *_SIMULATE,
        _JSON,
    ),
    _command(_requests, "render", "Print what a device task would send to Kubernetes; sends nothing", *_RENDER),
    _command(_exports, "snapshot", "Print all that a decision uses, as JSON; `plan --snapshot` reads it"),
    _command(_setup, "config", "Print the settings that an installation needs, or check them", *_CONFIG),
    _command(_setup, "doctor", "Run a small device task through the configured executor; say what it saw", _DEVICE),
    _command(_exports, "alerts", "Print alert rules for Prometheus"),
    _command(_exports, "dashboard", "Print a dashboard for Grafana, as JSON"),
    _command(_setup, "cleanup", "Remove the tables, the pool and the files of this plugin", _CLEANUP),
    _command(_exports, "schema", "Print the JSON schema of a device request"),
)
"""The commands, in the order of the help."""

HELP = "Show devices, the tasks that use them, and the tasks that wait for them and why"


def get_commands() -> "list[CLICommand]":
    """The commands, for Airflow's command line, which finds this function through the provider info.

    >>> [command.name for command in get_commands()[0].subcommands][:3]
    ['devices', 'models', 'cache']
    """
    from airflow.cli.cli_config import ActionCommand, GroupCommand

    if sys.argv[1:3] == ["celery", "worker"]:  # which runs no other code of this package before it starts its pool
        import_module("hetero_airflow.engines.celery_preload").connect()
    commands = [ActionCommand(name=c.name, help=c.help, func=c.run, args=c.args) for c in COMMANDS]
    return [GroupCommand(name="hetero", help=HELP, subcommands=commands)]
