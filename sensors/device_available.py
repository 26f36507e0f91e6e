"""Waits until a device request could be placed.

Only the executor can answer that: it has the workers, the leases, the queue and the policy. A trigger can't ask it,
because the triggerer has no access to our tables. The executor could only publish a Variable or an asset's state: a
second, late copy of the fleet, written in every cycle, from which each trigger would have to guess the policy's
decision. So the question goes where device tasks go: the sensor carries its request in ``executor_config``, marked as
a placement check. The executor holds it like a device task (QUEUED in their pool, without a process), asks the policy
in each cycle with changes, and starts it with the answer when the answer is yes. The sensor then only reads the answer.

Rejected: a device task that is really placed and ends at once. It would take devices from tasks that need them, and
might preempt others.
"""

from datetime import timedelta
from typing import Any, ClassVar, Unpack

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout

from hetero_airflow.contract.envelope import ENVELOPE_KEY
from hetero_airflow.contract.executor_names import device_task_defaults
from hetero_airflow.contract.local_run import is_local_run, requested
from hetero_airflow.contract.operator_keywords import SensorKeywords
from hetero_airflow.contract.placement_check import pack_placement_check, read_answer
from hetero_airflow.contract.signatures import keywords_named, takes, task_named
from hetero_airflow.errors import DeviceUnavailable, RequestError
from hetero_airflow.model.arguments import PlacementConditions, RequestedDevice
from hetero_airflow.model.plan import Place


class _Stated(RequestedDevice, PlacementConditions, total=False):
    """The keywords that the sensor's constructor reads itself."""

    timeout: timedelta | float | None
    executor: str | None
    executor_config: dict[str, Any] | None
    pool: str | None


class DeviceSensorKeywords(SensorKeywords, RequestedDevice, PlacementConditions, total=False):
    """The keywords of the sensor, except its id."""


class DeviceAvailableSensor(BaseSensorOperator):
    """Succeeds when the policy would place this request now. Returns the worker and the devices that it would use.

    Uses no device and no worker while it waits, and reserves nothing: another task may take the devices first. A device
    task waits by itself and needs no sensor. Use the sensor to choose between tasks, or to start something else.

    The request has the arguments of `hetero_airflow.operators.DeviceOperator`, from `device` to `priority`. The sensor
    waits at most `timeout`, and fails at once if no known worker could ever satisfy the request.

    :raises RequestError: when the DAG file is parsed, if the arguments are no valid request

    >>> DeviceAvailableSensor(task_id="room", device="a100:8", timeout=3600)
    <Task(DeviceAvailableSensor): room>
    """

    is_placement_check: ClassVar[bool] = True
    """Read by `hetero_airflow.operators.mapped`."""

    @takes(_Stated)
    def __init__(self, *, task_id: str, **keywords: Unpack[DeviceSensorKeywords]) -> None:
        others: dict[str, Any] = {**keywords}
        given = {name: others.pop(name, None) for name in ("device", *PlacementConditions.__annotations__)}
        with task_named(task_id), keywords_named(type(self), others):
            packed = pack_placement_check([{**given, "wait_timeout": others.get("timeout"), "patience": False}])
            others["executor_config"] = {**(others.get("executor_config") or {}), ENVELOPE_KEY: packed}
            for name, value in device_task_defaults().items():
                others[name] = others.get(name) or value
            super().__init__(task_id=task_id, **others)

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """The executor's answer, which came with the task. In a local run, that of the policy on this machine.

        :raises AirflowSensorTimeout: the request could not be placed in time
        :raises AirflowFailException: no known worker could ever satisfy the request
        """
        answer = read_answer(getattr(context["ti"], "context_carrier", None))
        if answer is None and is_local_run():
            return self._poke_here(context)
        if answer is None:
            self.log.warning(
                "HeteroExecutor did not check this request, because it does not run this task. The sensor succeeds, "
                "because device tasks then run on all visible devices. "
                "Run `airflow hetero config --check` to see what is missing."
            )
            return True
        if answer.problem:
            raise (AirflowFailException if answer.is_final else AirflowSensorTimeout)(answer.problem)
        return PokeReturnValue(True, {"worker_id": answer.worker_id, "device_ids": list(answer.device_ids)})

    def _poke_here(self, context: Context) -> bool | PokeReturnValue:
        from hetero_airflow.runtime.local_leases import LocalSettings, decide_here  # a DAG file needs none of it

        try:
            decision = decide_here(requested(self, context), LocalSettings.configured(conf))
        except (DeviceUnavailable, RequestError) as error:
            raise AirflowFailException(str(error)) from error
        if not isinstance(decision, Place):
            self.log.info("Local run: %s", getattr(decision, "reason", ""))
            return False
        device_ids = [claim.device_id for claim in decision.claims]
        return PokeReturnValue(True, {"worker_id": decision.worker_id, "device_ids": device_ids})
