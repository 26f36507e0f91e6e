"""Runs ``airflow`` commands. It has loaded Airflow and its commands once, and forks a process for each command.

Each line of its standard input is a JSON list: the arguments, more environment variables, and the files for the
command's output and errors. It answers each with a line that has the exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
import traceback
from pathlib import Path

from airflow.__main__ import main
from airflow.cli.cli_parser import get_parser

from hetero_airflow import cli
from hetero_airflow.engines import lease_folders

MEMORY_FOLDER = "TESTS_MEMORY_FOLDER"
"""A folder in place of the one that all processes of this host share."""
STANDARD_STREAMS = (0, 1, 2)


def run(arguments: list[str], variables: dict[str, str], *outputs: str) -> int:
    """Run a command in this process; its exit code."""
    for stream, path in zip(STANDARD_STREAMS, (os.devnull, *outputs), strict=True):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), stream)
    os.environ.update(variables)
    if MEMORY_FOLDER in os.environ:
        lease_folders._MEMORY = Path(os.environ[MEMORY_FOLDER])
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001  as Python does at the end of a program
        traceback.print_exc()
        return 1
    return 0


def load_commands() -> None:
    """Import what the commands of ``airflow hetero`` import."""
    for module in pkgutil.walk_packages(cli.__path__, f"{cli.__name__}."):
        importlib.import_module(module.name)


if __name__ == "__main__":
    get_parser()
    load_commands()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = run(*json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
