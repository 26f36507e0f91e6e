"""Modules that a Celery worker imports once: the processes of its pool, and those of their tasks, are forks of it.

The trial comes first here as well. The worker waits for it, since its pool starts only once.
"""

import logging
import os
from typing import Any

from airflow.configuration import conf
from celery.signals import import_modules

from hetero_airflow.engines.preload import (
    CANNOT_PRELOAD,
    LOADED,
    TASK_VARIABLES,
    preload,
    preload_problem,
    preload_setting,
)
from hetero_airflow.errors import SettingsError

log = logging.getLogger(__name__)


def connect() -> None:
    """Let this process, a Celery worker, import the modules before it starts its pool."""
    import_modules.connect(_import, weak=False)


def _import(**_: Any) -> None:
    try:
        names = preload_setting()
    except SettingsError:
        log.exception("Tasks run without [hetero] preload.")
        return
    if not names:
        return
    pool = conf.get("celery", "pool", fallback="prefork")
    if pool != "prefork":
        log.warning("[hetero] preload does nothing with [celery] pool = %s.", pool)
        return
    problem = preload_problem(names)
    if problem:
        log.error(CANNOT_PRELOAD, ", ".join(names), problem)
        return
    os.environ.update(TASK_VARIABLES)
    preload([*LOADED, *names], dies_with_parent=False)
    log.info("Tasks start with %s imported.", ", ".join(names))
