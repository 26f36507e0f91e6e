"""``@task.device(...)``: a function as a task on devices."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, cast

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import task as airflow_task
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory
from airflow.sdk.definitions.decorators import TaskDecoratorCollection

from hetero_airflow.contract.envelope import ARGUMENTS
from hetero_airflow.model.arguments import Checkpointing, DeviceArgument, Duration, PriorityName, Quota
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
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    *,
    device: DeviceArgument | None = None,
    quota: Quota | None = None,
    runtime: Mapping[str, str] | None = None,
    driver: str | None = None,
    labels: Mapping[str, str] | None = None,
    topology: str | None = None,
    spot: bool | None = None,
    priority: PriorityName | None = None,
    wait_timeout: Duration | None = None,
    patience: bool | None = None,
    gang: int | str | None = None,
    checkpoint: Checkpointing | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Turn a function into a task on devices. Takes the arguments of ``@task`` as well.

    Available as ``@task.device`` once the package is installed. Type checkers and IDEs know its arguments if `task`
    comes from ``hetero_airflow.operators``; it is Airflow's own `task`.

    :param device: the devices: ``gpu``, ``a100:2``, ``gpu:0.5``, a list of alternatives, a set, ...
    :param quota: count, share, memory, cpus, host_memory
    :param runtime: software → version specifier
    :param driver: version specifier of the driver
    :param labels: label → value of the worker
    :param topology: nvlink or numa of the devices; host, rack or site of a gang; ``nvlink@10m`` waits at most that long
    :param spot: False: never on a worker with the label ``hetero/spot``, whose machine may be taken back
    :param priority: urgent, high, medium or low
    :param wait_timeout: fail after waiting for longer
    :param patience: False: never wait for better devices while others are free
    :param gang: for a mapped task: this many of its instances are placed together or not at all
    :param checkpoint: mapping with any of url, keep_last, keep_best, keep_every, on_clear

    >>> from hetero_airflow.operators import task
    >>> @task.device(device=["gpu", "cpu:2"], quota={"host_memory": "2GiB"})
    ... def train(): ...
    """
    values = (device, quota, runtime, driver, labels, topology, spot, priority, wait_timeout, patience)
    arguments = {**dict(zip(ARGUMENTS, values, strict=True)), "gang": gang, "checkpoint": checkpoint}
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=DeviceDecoratedOperator,
        **{name: value for name, value in arguments.items() if value is not None},
        **kwargs,
    )


class _TaskDecorators(TaskDecoratorCollection):
    """Airflow's `task`, with the signature of ``task.device``, which Airflow's own types don't know."""

    device = staticmethod(device_task)


task: _TaskDecorators = cast("_TaskDecorators", airflow_task)
"""Airflow's `task`. Import it from here to have the arguments of ``@task.device`` checked."""
