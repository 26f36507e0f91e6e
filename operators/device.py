"""The base of all device operators: it sends the request to the executor and binds the lease in the task."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, Context, RetryPolicy
from airflow.sdk.log import mask_secret

from hetero_airflow.contract.envelope import ENVELOPE_KEY, pack_request, read_lease
from hetero_airflow.contract.executor_names import device_task_defaults
from hetero_airflow.contract.local_run import is_local_run
from hetero_airflow.contract.operator_keywords import OperatorKeywords
from hetero_airflow.contract.signatures import keywords_named, takes, task_named
from hetero_airflow.contract.task_lease import current_lease
from hetero_airflow.model.arguments import DeviceArguments
from hetero_airflow.model.gang import parse_gang
from hetero_airflow.operators.checkpoints import CheckpointArguments, checkpoint_environment_set, parse_profile
from hetero_airflow.operators.data_ahead import data_read_ahead
from hetero_airflow.operators.outlets import with_published
from hetero_airflow.operators.requeue import raise_if_preempted, requeued_by_rules, rescheduled_if_preempted
from hetero_airflow.operators.retry_policy import DeviceRetryPolicy
from hetero_airflow.runtime.visible_devices import bound_to_lease
from hetero_airflow.settings import LEASE_VARIABLE, TASK_SECRET_VARIABLE


class DeviceTaskKeywords(OperatorKeywords, DeviceArguments, total=False):
    """All keywords of a device task, except its id."""


class DeviceOperator(BaseOperator):
    """Mix in before another operator to give it devices: ``class MyOperator(DeviceOperator, SomeOperator)``.

    The arguments are those of `hetero_airflow.model.request.DeviceRequest.parse`. Each may contain a Jinja template
    over ``params``, ``dag_run``, ``run_id``, ``ds`` and ``logical_date``, rendered before the task is placed.

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
    :param data: URLs of what the task reads; of equally good workers it gets one that has them cached
    :param gang: for a mapped task: this many of its instances, in the order of their map indexes, are placed together
        or not at all. ``"2:4@10m"`` starts with fewer if 4 can't be placed within ten minutes. `current_lease().gang`
        has each instance's rank, and the hosts of all
    :param checkpoint: mapping with any of url, keep_last, keep_best, keep_every, on_clear; see `CheckpointArguments`
    :param profile: True: keep a torch.profiler trace of the steps 11 to 20 of each run beside its checkpoints
    :raises RequestError: when the DAG file is parsed, if the arguments are no valid request
    """

    is_one_training: ClassVar[bool] = False
    """Whether the tasks of a gang are ranks of one training, with one place for its checkpoints."""

    @takes(DeviceArguments)
    def __init__(
        self,
        *,
        retry_policy: RetryPolicy | None = None,
        executor: str | None = None,
        executor_config: dict[str, Any] | None = None,
        pool: str | None = None,
        **kwargs: Any,
    ) -> None:
        given = {name: kwargs.pop(name, None) for name in DeviceArguments.__annotations__}
        defaults = device_task_defaults()
        with task_named(kwargs.get("task_id")), keywords_named(type(self), kwargs):
            self.gang = parse_gang(given["gang"])
            self.checkpoint = CheckpointArguments.parse(given["checkpoint"])
            self.profile = parse_profile(given["profile"])
            super().__init__(
                executor=executor or defaults.get("executor"),
                executor_config={**(executor_config or {}), ENVELOPE_KEY: pack_request([given])},
                pool=pool or defaults.get("pool"),
                retry_policy=retry_policy or DeviceRetryPolicy(),
                **kwargs,
            )

    def execute(self, context: Context) -> Any:
        """Run the wrapped operator with the lease bound to this process."""
        return self._run(context, functools.partial(super().execute, context))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after a deferral, with the new lease bound to this process."""
        return self._run(context, functools.partial(super().resume_execution, next_method, next_kwargs, context))

    def on_kill(self) -> None:
        """Stop what the operator started. A preempted task goes on later."""
        super().on_kill()
        raise_if_preempted()

    def _run(self, context: Context, work: Callable[[], Any]) -> Any:
        """Do the work with a lease: that of the executor, or in a local run one of this machine."""
        return self._run_with_lease(context, lambda: with_published(context, self.outlets, work()))

    def _run_with_lease(self, context: Context, work: Callable[[], Any]) -> Any:
        has_lease = LEASE_VARIABLE in os.environ or read_lease(getattr(context["ti"], "context_carrier", None))
        if has_lease or not is_local_run():
            bound, handled = self._lease_bound(context), requeued_by_rules(context, self.log)
            with bound, rescheduled_if_preempted(self.log), handled, data_read_ahead(self):
                return work()
        from hetero_airflow.operators.local_run import run_on_local_devices

        return run_on_local_devices(self, context, functools.partial(self._run_locally, context, work))

    def _run_locally(self, context: Context, work: Callable[[], Any]) -> Any:
        """Do the work of a local run. A failure goes to the person who waits for it, and is not requeued."""
        with self._lease_bound(context), rescheduled_if_preempted(self.log):
            return work()

    @contextmanager
    def _lease_bound(self, context: Context) -> Iterator[None]:
        """Bind the lease here, unless a coordinator has bound it before the DAG file was parsed."""
        in_environment = current_lease() if LEASE_VARIABLE in os.environ else None
        lease = in_environment or read_lease(getattr(context["ti"], "context_carrier", None))
        checkpoints = checkpoint_environment_set(
            context, self.checkpoint, lease, is_one_training=self.is_one_training, profiles=self.profile
        )
        pool = device_task_defaults().get("pool", self.pool)
        if lease is not None and self.pool != pool:
            self.log.info(
                "This task is in the pool %s, so it needed a slot there before it could wait for its device. If that "
                "is not wanted, leave out the argument pool, also in default_args: the default is the pool %s.",
                self.pool, pool,
            )  # fmt: skip
        if secret := os.environ.get(TASK_SECRET_VARIABLE):
            mask_secret(secret)
        if lease is not None:
            waited = "" if lease.waited_s is None else f". The task waited {lease.waited_s:g} s for it"
            bound = (
                "" if in_environment is not None else " (bound by the operator; a coordinator binds it before parsing)"
            )
            self.log.info("Device: %s%s%s", lease, bound, waited)
        else:
            self.log.warning(
                "This task has no device lease, because HeteroExecutor did not place it. It runs on all visible "
                "devices. Run `airflow hetero config --check` to see what is missing."
            )
        with nullcontext() if lease is None or in_environment is not None else bound_to_lease(lease), checkpoints:
            yield
