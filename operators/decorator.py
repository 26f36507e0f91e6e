"""``@task.device(...)``: a function as a task on devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from hetero_airflow.operators.device import DeviceOperator


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


def device_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Turn a function into a task on devices. Takes the arguments of `DeviceOperator` and of ``@task``.

    Available as ``@task.device`` once the package is installed.

    >>> from airflow.sdk import task
    >>> @task.device(device=["gpu", "cpu:2"], quota={"host_memory": "2GiB"})
    ... def train(): ...
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=DeviceDecoratedOperator,
        **kwargs,
    )
