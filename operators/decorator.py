"""``@task.device``, ``@task.device_bash`` and ``@task.torchrun``: a function as a task on devices."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Never, Unpack, cast

from airflow.providers.standard.decorators.bash import _BashDecoratedOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import task as airflow_task
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory
from airflow.sdk.definitions.decorators import TaskDecoratorCollection

from hetero_airflow.errors import RequestError
from hetero_airflow.operators.bash import DeviceBashKeywords, DeviceBashOperator
from hetero_airflow.operators.device import DeviceOperator
from hetero_airflow.operators.python import DevicePythonKeywords
from hetero_airflow.operators.torchrun import TorchrunKeywords
from hetero_airflow.operators.torchrun_function import TorchrunDecoratedOperator


class DeviceDecoratedOperator(DeviceOperator, DecoratedOperator, PythonOperator):
    """The operator behind ``@task.device``."""

    template_fields: Sequence[str] = ("templates_dict", "op_args", "op_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "templates_dict": "json",
        "op_args": "py",
        "op_kwargs": "py",
    }
    custom_operator_name: str = "@task.device"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        arguments: dict[str, Any] = {"python_callable": python_callable, "op_args": op_args, "op_kwargs": op_kwargs}
        super().__init__(kwargs_to_upstream=arguments, **arguments, **kwargs)


class DeviceBashDecoratedOperator(DeviceBashOperator, _BashDecoratedOperator):
    """The operator behind ``@task.device_bash``."""

    custom_operator_name: str = "@task.device_bash"


class PythonTaskKeywords(DevicePythonKeywords, total=False):
    """The keywords of ``@task.device``."""

    task_id: str


class BashTaskKeywords(DeviceBashKeywords, total=False):
    """The keywords of ``@task.device_bash``."""

    task_id: str


class TorchrunTaskKeywords(TorchrunKeywords, total=False):
    """The keywords of ``@task.torchrun``."""

    task_id: str


def device_task(*function: Never, **keywords: Unpack[PythonTaskKeywords]) -> TaskDecorator:
    """Turn a function into a task on devices. Takes the arguments of `DeviceOperator` and of ``@task``.

    Available as ``@task.device`` once the package is installed. Type checkers and IDEs know its arguments if `task`
    comes from ``hetero_airflow.operators``; it is Airflow's own `task`.

    :raises RequestError: without the brackets, when the DAG file is parsed; the arguments, when the function is called

    >>> from hetero_airflow.operators import task
    >>> @task.device(device=["gpu", "cpu:2"], quota={"host_memory": "2GiB"})
    ... def train(): ...
    """
    return _decorator(DeviceDecoratedOperator, function, keywords)


def device_bash_task(*function: Never, **keywords: Unpack[BashTaskKeywords]) -> TaskDecorator:
    """Turn a function that returns a shell command into a task that runs it on devices. Else like `device_task`.

    >>> from hetero_airflow.operators import task
    >>> @task.device_bash(device="gpu")
    ... def smi() -> str:
    ...     return "nvidia-smi -i $CUDA_VISIBLE_DEVICES"
    """
    return _decorator(DeviceBashDecoratedOperator, function, keywords)


def torchrun_task(*function: Never, **keywords: Unpack[TorchrunTaskKeywords]) -> TaskDecorator:
    """Run a function in several processes by torchrun. Takes the arguments of `TorchrunOperator`, without a script.

    Each rank runs the function's source, not the DAG file: the function imports what it uses. Its arguments are JSON.
    The task's result is what rank 0 returns, as JSON. Else like `device_task`.

    >>> from hetero_airflow.operators import task
    >>> @task.torchrun(device="gpu:4")
    ... def train(rate: float) -> float:
    ...     from torch import distributed
    ...     distributed.init_process_group()
    ...     return rate / distributed.get_world_size()
    """
    return _decorator(TorchrunDecoratedOperator, function, keywords)


_DecoratedOperator = DeviceDecoratedOperator | DeviceBashDecoratedOperator | TorchrunDecoratedOperator


def _decorator(
    operator: type[_DecoratedOperator], function: Sequence[object], keywords: Mapping[str, Any]
) -> TaskDecorator:
    name = operator.custom_operator_name
    if function:
        raise RequestError(
            name, getattr(function[0], "__name__", function[0]), found="no device", remedy=f'Write {name}(device="gpu")'
        )
    return task_decorator_factory(decorated_operator_class=operator, **keywords)


class _TaskDecorators(TaskDecoratorCollection):
    """Airflow's `task`, with the signatures of our decorators, which Airflow's own types don't know."""

    device = staticmethod(device_task)
    device_bash = staticmethod(device_bash_task)
    torchrun = staticmethod(torchrun_task)


task: _TaskDecorators = cast("_TaskDecorators", airflow_task)
"""Airflow's `task`. Import it from here to have the arguments of our decorators checked."""
