"""What ``airflow hetero`` offers. Every call of ``airflow`` imports this module, so it imports nothing heavy."""

from __future__ import annotations

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

_JSON = Arg(("--json",), action="store_true", default=False, help="Print JSON for programs, not a table for people")
_SITE = Arg(("--site",), metavar="SITE", help="Only those with this label hetero/site")
_TASK = (
    Arg(("dag_id",), help="The id of the DAG"),
    Arg(("run_id",), help="The id of the DAG run"),
    Arg(("task_id",), help="The id of the task"),
)
_TARGET = Arg(("target",), metavar="WORKER[/DEVICE]", help="As `airflow hetero workers --json` names them")
_WORKER = Arg(("worker",), metavar="WORKER", help="The worker's name; an agent's is its host's unless told otherwise")
_AGENT = (
    Arg(("--url",), required=True, help="Of Airflow's API server, as browsers reach it"),
    Arg(("--name",), metavar="WORKER", help="The worker's name; usually the host's"),
    Arg(("--engine",), default="celery", help="What runs the tasks on this host"),
    Arg(("--labels",), metavar="JSON", help="The worker's labels; usually those of [hetero] labels"),
)
_MAP_INDEX = Arg(("--map-index",), type=int, default=-1, help="Of a mapped task: which instance, from 0")

_PLAN = (
    Arg(("dag_file",), help="The path of a DAG file; it is parsed, not run"),
    Arg(("--dag-id",), help="Which DAG of the file, where it has several"),
    Arg(("--at",), metavar="TIME", help="When the run starts, ISO 8601; usually now"),
    Arg(("--conf",), metavar="JSON", help="The run's conf, for templates in device requests"),
    Arg(("--snapshot",), metavar="FILE", help="A saved snapshot instead of the live one"),
    Arg(("--assume",), metavar="TIME", default="10m", help="How long a task takes of which nothing is known"),
    Arg(("--deadline",), metavar="TIME", help="How long the run may take; usually the DAG's dagrun_timeout"),
    Arg(("--policy",), help="The policy; without one, the configured one"),
)
_SIMULATE = (
    Arg(("--trace",), help="A public trace, such as gavel/h300_seed0; without one, what ran in this installation"),
    Arg(("--traces",), help="The folder of the traces; usually HETERO_AIRFLOW_TRACES says it"),
    Arg(("--history",), type=float, default=30, metavar="DAYS", help="How far back the installation's history goes"),
    Arg(("--cluster",), help="Pretend devices: v100=12,p100=3x4 is one worker of 12 and three of 4"),
    Arg(("--policy",), help="The policy; without one, the configured one"),
    Arg(("--compare",), metavar="POLICIES", help="Others to compare it with: fifo,las"),
    Arg(
        ("--knowledge",),
        choices=("none", "learned", "speeds", "oracle"),
        default="speeds",
        help="What policies are told: nothing, what ended runs teach, speeds on each device, or also lengths",
    ),
    Arg(
        ("--restart-cost",),
        metavar="TIME",
        help="Of a job that goes on after a preemption; usually 7, 30 or 60 s for 1, up to 8 or more devices",
    ),
    Arg(("--no-preemption",), action="store_true", default=False, help="What runs keeps its devices until it ends"),
    Arg(("--jobs",), metavar="FIRST..LAST", help="The jobs that figures are of, by number; the others only compete"),
    Arg(("--until",), metavar="TIME", help="End the simulation then"),
    Arg(("--cycle",), metavar="TIME", help="Decide at multiples of this, as a heartbeat does; usually at each event"),
    Arg(("--uptime",), metavar="TIME", help="Mean time until a worker fails; usually never"),
    Arg(("--repair",), metavar="TIME", help="How long a failed worker is away; usually 1h"),
    Arg(("--checkpoint",), metavar="TIME", help="How often jobs save, for failures; usually 30m"),
    Arg(("--seed",), type=int, default=0, help="Of the failures"),
    Arg(("--html",), metavar="FILE", help="Write a report with charts there"),
    Arg(("--timing",), action="store_true", default=False, help="Also say how long deciding took, in JSON too"),
)


def get_commands() -> list[CLICommand]:
    """The commands, as Airflow's command line takes them from the provider info.

    >>> names = [command.name for command in get_commands()[0].subcommands]
    >>> names[:8]
    ['devices', 'workers', 'worker', 'enroll', 'revoke', 'drain', 'undrain', 'queue']
    >>> names[8:]
    ['explain', 'plan', 'simulate', 'render', 'snapshot', 'config', 'schema']
    """
    return [
        GroupCommand(
            name="hetero",
            help="See devices, who uses them, who waits for them and why",
            subcommands=(
                _command("devices", "Look at the devices of this machine now; needs no database", _JSON),
                _command(
                    "workers", "List the known workers, their devices and how much of them is leased", _SITE, _JSON
                ),
                _command("worker", "Be this host's agent: tell Airflow's API server of its devices", *_AGENT),
                _command("enroll", "Print a secret, once, with which an agent may enrol for a worker", _WORKER),
                _command("revoke", "Hear a worker's agent no more, and give the worker no new task", _WORKER),
                _command(
                    "drain",
                    "Give a worker or a device no new task; what runs there may finish, or moves",
                    _TARGET,
                    Arg(
                        ("--move",),
                        action="store_true",
                        default=False,
                        help="Tell the tasks there to save at their next checkpoint and go on elsewhere",
                    ),
                    Arg(("--reason",), metavar="TEXT", default="", help="Shown wherever a task waits for it"),
                ),
                _command("undrain", "Let a worker or a device take tasks again, a quarantined one too", _TARGET),
                _command("queue", "List the tasks that wait for devices, in order, then those that hold some", _JSON),
                _command(
                    "explain", "Say why a task waits, or why it got the devices that it has", *_TASK, _MAP_INDEX, _JSON
                ),
                _command(
                    "plan",
                    "Rehearse a run of a DAG on the workers as they are; exit code 1 if anything would go wrong",
                    *_PLAN,
                    _JSON,
                ),
                _command(
                    "simulate",
                    "Run a trace, or this installation's history, through policies on a pretend cluster",
                    *_SIMULATE,
                    _JSON,
                ),
                _command(
                    "render",
                    "Print what a device task would send to a Kubernetes cluster; sends nothing",
                    Arg(("dag_id",), help="The id of the DAG; its file is parsed"),
                    Arg(("task_id",), help="The id of the task"),
                    _MAP_INDEX,
                    Arg(
                        ("--dra",), action="store_true", default=False, help="By a claim (dynamic resource allocation)"
                    ),
                    Arg(("-o", "--output"), choices=("yaml", "json"), default="yaml", help="yaml or json"),
                ),
                _command("snapshot", "Print all that a decision looks at, as JSON; `plan --snapshot` reads it"),
                _command(
                    "config",
                    "Print the settings that an installation needs, or check them",
                    Arg(("--env",), action="store_true", default=False, help="As lines for a shell: export NAME=..."),
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
