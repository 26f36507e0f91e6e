"""The former place of the coordinator, kept for installations that name it in ``[sdk] coordinators``. Deprecated."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from hetero_airflow.contract.executor_names import COORDINATOR_CLASSPATH, COORDINATOR_MODULE


def __getattr__(name: str) -> Any:
    """The class from its new place, with a warning."""
    if name != "DeviceCoordinator":
        raise AttributeError(name)
    warnings.warn(
        f"{__name__} is deprecated. Set the classpath in [sdk] coordinators to {COORDINATOR_CLASSPATH}.",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(import_module(COORDINATOR_MODULE), name)
