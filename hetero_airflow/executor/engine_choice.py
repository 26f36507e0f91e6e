"""Which engine the configuration names, and what Airflow asks of its executor's class before it makes one."""

from __future__ import annotations

from typing import Any

from airflow.configuration import conf

from hetero_airflow import engines
from hetero_airflow.errors import SettingsError
from hetero_airflow.registry import load, names
from hetero_airflow.settings import SECTION, default


def configured_engine() -> Any:
    """The class of the engine that ``[hetero] engine`` names.

    :raises SettingsError: there is none of that name
    """
    name = conf.get(SECTION, "engine", fallback=default("engine")).strip()
    if name not in (known := names(engines.GROUP, engines.ENGINES)):
        raise SettingsError(f"[{SECTION}] engine = {name}", found="no such engine", remedy=f"Use {', '.join(known)}")
    return load(engines.GROUP, engines.ENGINES, name)


class EngineTrait:
    """A class attribute of the executor that is as the configured engine's `EngineTraits` say."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> bool:
        return bool(getattr(configured_engine().traits, self._name))
