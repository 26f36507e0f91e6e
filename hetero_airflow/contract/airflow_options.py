"""Airflow's options, as Airflow reads them, also for programs that do not import Airflow: its import takes seconds."""

import os
import shlex
import socket
import subprocess
from collections.abc import Mapping
from configparser import ConfigParser, Error
from importlib import import_module
from typing import Any

from hetero_airflow.errors import SettingsError

_FQDN = "airflow.utils.net.getfqdn"


class AirflowOptions:
    """Options from the environment, from airflow.cfg, and from the commands that both may name.

    Values of a secrets backend need Airflow.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self.home = expanded(environment.get("AIRFLOW_HOME", "~/airflow"))
        path = expanded(environment.get("AIRFLOW_CONFIG", f"{self.home}/airflow.cfg"))
        self._file = ConfigParser()
        try:
            self._file.read(path)
        except (Error, UnicodeDecodeError) as error:
            raise SettingsError(path, found=f"no configuration: {error}", remedy="Correct it") from error

    def get(self, section: str, key: str, fallback: Any = None) -> Any:
        """The option's text; the fallback if it is set nowhere.

        :raises SettingsError: a secrets backend has it, or its command fails
        """
        asked = f"[{section}] {key}"
        for read in (self._variable, self._line):
            if (text := read(section, key)) is not None:
                return expanded(text)
            if (command := read(section, f"{key}_cmd")) is not None:
                return _output(command, asked)
            if read(section, f"{key}_secret") is not None:
                remedy = "Use `airflow hetero`, which asks it"
                raise SettingsError(asked, found="a value in a secrets backend", remedy=remedy)
        return fallback

    def _variable(self, section: str, key: str) -> str | None:
        return self._environment.get(f"AIRFLOW__{section.upper()}__{key.upper()}")

    def _line(self, section: str, key: str) -> str | None:
        try:
            return self._file.get(section, key, fallback=None)
        except Error as error:
            raise SettingsError(f"[{section}] {key}", found=str(error), remedy="Correct it in airflow.cfg") from error

    @property
    def database_url(self) -> str:
        """The URL of Airflow's database."""
        return str(self.get("database", "sql_alchemy_conn", f"sqlite:///{self.home}/airflow.db"))


def expanded(text: str) -> str:
    """The text with variables and ``~`` replaced, again and again, as Airflow does it.

    >>> expanded("$NOT_SET/a")
    '$NOT_SET/a'
    """
    before = None
    while text != before:
        before, text = text, os.path.expanduser(os.path.expandvars(text))
    return text


def _output(command: str, asked: str) -> str:
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    except (OSError, ValueError) as error:
        raise SettingsError(asked, found=f"a command that can't run: {error}", remedy="Correct the command") from error
    if done.returncode != 0:
        found = f"exit code {done.returncode} of its command {shlex.split(command)[0]}"
        raise SettingsError(asked, found=found, remedy="Correct the command")
    return done.stdout


class _Reader:
    """What reads the options in this process."""

    own: AirflowOptions | None = None


def read_without_airflow() -> AirflowOptions:
    """From now on, read the options of this process without Airflow."""
    _Reader.own = AirflowOptions()
    return _Reader.own


def without_airflow() -> AirflowOptions | None:
    """What reads the options of this process without Airflow; None if Airflow reads them."""
    return _Reader.own


def options() -> Any:
    """What reads the options of this process: its ``get`` is that of Airflow's `conf`."""
    if _Reader.own is not None:
        return _Reader.own
    from airflow.configuration import conf

    return conf


def host_name() -> str:
    """This host's name, as Airflow determines it."""
    path = str(options().get("core", "hostname_callable", fallback=_FQDN))
    if path != _FQDN:
        module, _, function = path.rpartition(".")
        return str(getattr(import_module(module), function)())
    name = socket.gethostname()
    try:
        addresses = socket.getaddrinfo(name, None, 0, socket.SOCK_DGRAM, 0, socket.AI_CANONNAME)
    except OSError:
        return name
    return next((canonical for *_, canonical, _ in addresses if canonical), name)
