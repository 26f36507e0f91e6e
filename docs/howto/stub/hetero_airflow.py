"""Lets DAG files that import hetero_airflow parse where it is not installed. Save it in Airflow's folder config.

Their tasks run on the default executor, without a lease: on all devices that their process sees. What needs the package
when a task runs says so: torchrun, checkpoints, leases.
"""

import functools
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import BaseOperator
from airflow.sdk import task as airflow_task

__path__: list[str] = []

OURS = {
    *("device", "quota", "runtime", "driver", "labels", "topology", "spot", "priority", "wait_timeout", "patience"),
    *("data", "gang", "checkpoint", "profile"),
}


class _Missing:
    """Says what is missing, as soon as it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{self._name} needs the package hetero-airflow, which is not installed here")

    __iter__ = __enter__ = __call__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")


class DeviceOperator(BaseOperator):
    """Without a device."""

    def __init__(
        self,
        *,
        device: Any = None,
        quota: Any = None,
        runtime: Any = None,
        driver: Any = None,
        labels: Any = None,
        topology: Any = None,
        spot: Any = None,
        priority: Any = None,
        wait_timeout: Any = None,
        patience: Any = None,
        data: Any = None,
        gang: Any = None,
        checkpoint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class DevicePythonOperator(DeviceOperator, PythonOperator):
    """A PythonOperator."""


class DeviceBashOperator(DeviceOperator, BashOperator):
    """A BashOperator."""


class _FailsAtRun(DeviceOperator):
    def execute(self, context: Any) -> Any:
        """Say what is missing."""
        _Missing(type(self).__name__)()


class TorchrunOperator(_FailsAtRun):
    """Parses."""

    def __init__(
        self,
        *,
        script: Any = None,
        module: Any = None,
        args: Any = None,
        processes: Any = None,
        max_restarts: Any = None,
        env: Any = None,
        compress_gradients: Any = None,
        node_rank: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class CheckpointSensor(_FailsAtRun):
    """Parses."""

    def __init__(self, *, task_id: str, **kwargs: Any) -> None:
        super().__init__(task_id=task_id)


class DeviceAvailableSensor(DeviceOperator):
    """Succeeds."""

    def __init__(self, *, task_id: str, **kwargs: Any) -> None:
        super().__init__(task_id=task_id)

    def execute(self, context: Any) -> None:
        """Do nothing."""


class DevicePodOperator(_FailsAtRun):
    """Parses."""

    def __init__(self, *, task_id: str, **kwargs: Any) -> None:
        super().__init__(task_id=task_id)


class _Task:
    """Airflow's `task`, with our decorators."""

    def device(self, **kwargs: Any) -> Any:
        """As ``@task``."""
        return airflow_task(**{name: value for name, value in kwargs.items() if name not in OURS})

    def device_bash(self, **kwargs: Any) -> Any:
        """As ``@task.bash``."""
        return airflow_task.bash(**{name: value for name, value in kwargs.items() if name not in OURS})

    def torchrun(self, **kwargs: Any) -> Any:
        """A task that fails."""

        def decorated(function: Any) -> Any:
            @functools.wraps(function)
            def missing(*_: Any, **__: Any) -> None:
                _Missing("@task.torchrun")()

            return airflow_task(task_id=kwargs.get("task_id", function.__name__))(missing)

        return decorated

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return airflow_task(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(airflow_task, name)


def _module(name: str, **contents: Any) -> None:
    module = ModuleType(f"{__name__}.{name}")
    module.__dict__.update(contents, __path__=[])
    missing = f"hetero_airflow.{name}"
    module.__getattr__ = lambda item: _Missing(f"{missing}.{item}")  # type: ignore[method-assign]
    sys.modules[module.__name__] = module


try:
    raise ImportError(f"remove {__file__}: hetero-airflow {metadata.version('hetero-airflow')} is installed")
except metadata.PackageNotFoundError:
    _module(
        "operators",
        task=_Task(),
        DeviceOperator=DeviceOperator,
        DevicePythonOperator=DevicePythonOperator,
        DeviceBashOperator=DeviceBashOperator,
        DevicePodOperator=DevicePodOperator,
        TorchrunOperator=TorchrunOperator,
    )
    _module("sensors", CheckpointSensor=CheckpointSensor, DeviceAvailableSensor=DeviceAvailableSensor)
    _module("runtime")
    _module("errors", NoLeaseError=RuntimeError, HeteroError=RuntimeError, RequestError=ValueError)
