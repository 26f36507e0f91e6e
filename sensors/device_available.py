"""Waits until a device request could be placed.

Who knows is the executor: it alone has the workers, the leases, the queue and the policy. A trigger can't ask it: the
triggerer has no access to our tables, and none of what the Execution API lets it read is ours to write: a Variable or
an asset's state would be a second, late copy of the fleet, written in every cycle and read by polling, from which each
trigger would have to guess the policy's decision. So the question goes where device tasks go: the sensor carries its
request in ``executor_config``, marked as a probe. The executor holds it as it holds any device task (QUEUED in the pool
for device tasks, without a process), asks the policy in each cycle that brings something new, and starts it with the
answer once the answer is yes. What then runs for a moment on the host only reads it.

Rejected: a device task that is really placed and ends at once. It would take the devices from those who need them,
and might have others preempted.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout

from hetero_airflow.contract.envelope import ARGUMENTS, ENVELOPE_KEY
from hetero_airflow.contract.placement_check import pack_placement_check, read_answer
from hetero_airflow.contract.selection import device_task_defaults


class DeviceAvailableSensor(BaseSensorOperator):
    """Succeeds when the policy would place this request now; returns the worker and the devices it would take.

    Takes no device and no worker while it waits. What was free may be taken when the next task comes: a task that
    needs a device waits for it by itself, and needs no sensor. Use this to choose, or to start something else.

    The request is given as to `hetero_airflow.operators.DeviceOperator`; `timeout` is how long it waits at most. What
    no known worker could ever do fails at once.

    :param device: what to run on: ``gpu``, ``a100:2``, ``gpu:0.5``, a list of alternatives, a set, ...
    :param quota: count, share, memory, cpus, host_memory
    :param runtime: software → version specifier
    :param driver: version specifier of the driver
    :param labels: label → value of the worker
    :param topology: nvlink or numa of the devices, host, rack or site of a gang
    :param priority: urgent, high, medium or low
    :raises RequestError: when the DAG file is parsed, if the arguments make no request

    >>> DeviceAvailableSensor(task_id="room", device="a100:8", timeout=3600)
    <Task(DeviceAvailableSensor): room>
    """

    is_placement_check: ClassVar[bool] = True
    """Read by `hetero_airflow.operators.mapped`."""

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
        timeout: timedelta | float | None = None,
        executor: str | None = None,
        executor_config: dict[str, Any] | None = None,
        pool: str | None = None,
        **kwargs: Any,
    ) -> None:
        values = (device, quota, runtime, driver, labels, topology, priority, timeout)
        given = dict(zip(ARGUMENTS, values, strict=True))
        defaults = device_task_defaults()
        super().__init__(
            executor=executor or defaults.get("executor"),
            executor_config={**(executor_config or {}), ENVELOPE_KEY: pack_placement_check([given])},
            pool=pool or defaults.get("pool"),
            timeout=timeout,
            **kwargs,
        )

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """The executor's answer, which came with the task.

        :raises AirflowSensorTimeout: there was no room in time
        :raises AirflowFailException: no known worker could ever satisfy the request
        """
        answer = read_answer(getattr(context["ti"], "context_carrier", None))
        if answer is None:
            self.log.warning(
                "Nobody was asked: this task was not held by HeteroExecutor, and succeeds as device tasks run then, on "
                "whatever is visible. `airflow hetero config --check` says what is missing."
            )
            return True
        if answer.problem:
            raise (AirflowFailException if answer.is_final else AirflowSensorTimeout)(answer.problem)
        return PokeReturnValue(True, {"worker_id": answer.worker_id, "device_ids": list(answer.device_ids)})
