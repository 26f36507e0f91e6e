"""What all device operators share: the request goes to the executor, the lease comes back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, Context, RetryPolicy

from hetero_airflow.contract.envelope import ARGUMENTS, ENVELOPE_KEY, pack_request, read_lease
from hetero_airflow.contract.retry_policy import DeviceRetryPolicy
from hetero_airflow.contract.selection import device_task_defaults
from hetero_airflow.model.gang import parse_gang
from hetero_airflow.operators.checkpoints import CheckpointArguments, checkpoint_environment_set
from hetero_airflow.operators.requeue import requeued_by_rules
from hetero_airflow.operators.stopping import raise_if_preempted, rescheduled_if_preempted
from hetero_airflow.runtime.task_lease import current_lease
from hetero_airflow.runtime.visible_devices import bound_to_lease
from hetero_airflow.settings import LEASE_VARIABLE


class DeviceOperator(BaseOperator):
    """Mix in before another operator to give it devices: ``class MyOperator(DeviceOperator, SomeOperator)``.

    The arguments are those of `hetero_airflow.model.request.DeviceRequest.parse`. Any of them may hold
    a Jinja template over ``params``, ``dag_run``, ``run_id``, ``ds`` and ``logical_date``; it is
    rendered before the task is placed.

    :param device: what to run on: ``gpu``, ``a100:2``, ``gpu:0.5``, a list of alternatives, a set, ...
    :param quota: count, share, memory, cpus, host_memory
    :param runtime: software → version specifier
    :param driver: version specifier of the driver
    :param labels: label → value of the worker
    :param topology: nvlink or numa of the devices, host, rack or site of a gang; ``nvlink@10m`` waits so long for it
    :param priority: urgent, high, medium or low
    :param wait_timeout: fail after waiting for longer
    :param gang: of a mapped task: so many of its instances, in the order of their map indexes, are placed all at the
        same time or not at all; ``"2:4@10m"`` goes on with fewer where 4 can't be had within ten minutes.
        `current_lease().gang` tells each of them which it is, and the hosts of all
    :param checkpoint: mapping with any of url, keep_last, keep_best, keep_every, on_clear; see `CheckpointArguments`
    :raises RequestError: when the DAG file is parsed, if the arguments make no request
    """

    is_one_training: ClassVar[bool] = False
    """Whether the tasks of a gang are ranks of one training, which has its checkpoints in one place."""

    def __init__(
        self,
        *,
        device: Any,
        quota: Any = None,
        runtime: Any = None,
        driver: Any = None,
        labels: Any = None,
        topology: Any = None,
        priority: Any = None,
        wait_timeout: Any = None,
        gang: Any = None,
        checkpoint: Any = None,
        retry_policy: RetryPolicy | None = None,
        executor: str | None = None,
        executor_config: dict[str, Any] | None = None,
        pool: str | None = None,
        **kwargs: Any,
    ) -> None:
        values = (device, quota, runtime, driver, labels, topology, priority, wait_timeout)
        given = dict(zip(ARGUMENTS, values, strict=True))
        defaults = device_task_defaults()
        super().__init__(
            executor=executor or defaults.get("executor"),
            executor_config={**(executor_config or {}), ENVELOPE_KEY: pack_request([given])},
            pool=pool or defaults.get("pool"),
            retry_policy=retry_policy or DeviceRetryPolicy(),
            **kwargs,
        )
        self.gang = parse_gang(gang)
        self.checkpoint = CheckpointArguments.parse(checkpoint)

    def execute(self, context: Context) -> Any:
        """Run the operator proper with the lease bound to this process."""
        with self._recovering(context):
            return super().execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a deferral, with the lease of this leg bound to this process."""
        with self._recovering(context):
            return super().resume_execution(next_method, next_kwargs, context)

    def on_kill(self) -> None:
        """Stop what the operator started; if it was preempted, the task goes on later."""
        super().on_kill()
        raise_if_preempted()

    @contextmanager
    def _recovering(self, context: Context) -> Iterator[None]:
        with self._lease_bound(context), rescheduled_if_preempted(self.log), requeued_by_rules(context, self.log):
            yield

    @contextmanager
    def _lease_bound(self, context: Context) -> Iterator[None]:
        """Bind the lease here if no coordinator did so before the DAG file was parsed."""
        if LEASE_VARIABLE in os.environ:
            own = current_lease()
            self.log.info("Device: %s", own)
            with checkpoint_environment_set(context, self.checkpoint, own, is_one_training=self.is_one_training):
                yield
            return
        lease = read_lease(getattr(context["ti"], "context_carrier", None))
        if lease is None:
            self.log.warning(
                "No device lease: this task was not placed by HeteroExecutor, and runs on whatever is visible. "
                "`airflow hetero config --check` says what is missing."
            )
            with checkpoint_environment_set(context, self.checkpoint, None):
                yield
            return
        self.log.info("Device: %s (bound by the operator; a coordinator would have bound it before parsing)", lease)
        training = checkpoint_environment_set(context, self.checkpoint, lease, is_one_training=self.is_one_training)
        with bound_to_lease(lease), training:
            yield
