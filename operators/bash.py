"""A shell command on devices."""

import os
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import Context

from hetero_airflow.contract.operator_keywords import BashKeywords
from hetero_airflow.contract.task_lease import current_lease
from hetero_airflow.operators.device import DeviceOperator, DeviceTaskKeywords
from hetero_airflow.runtime.visible_devices import lease_environment
from hetero_airflow.settings import LEASE_VARIABLE


class DeviceBashKeywords(DeviceTaskKeywords, BashKeywords, total=False):
    """The keywords of a shell command on devices."""


class DeviceBashOperator(DeviceOperator, BashOperator):
    """Airflow's BashOperator with the arguments of `DeviceOperator`.

    The command always gets the lease's variables, for any `env` and `append_env`. Bash does not read ``~/.bashrc``, as
    that could change them. Else it would, under systemd or cron: its input is a socket, and ``SHLVL`` is not set.

    >>> from hetero_airflow.operators import DeviceBashOperator
    >>> DeviceBashOperator(task_id="smi", bash_command="nvidia-smi -i $CUDA_VISIBLE_DEVICES", device="nvidia")
    <Task(DeviceBashOperator): smi>
    """

    if TYPE_CHECKING:

        def __init__(self, *, task_id: str, bash_command: str, **kwargs: Unpack[DeviceBashKeywords]) -> None: ...

    def get_env(self, context: Context) -> dict[str, Any]:
        """The environment variables of the command."""
        env: dict[str, Any] = super().get_env(context) | {"SHLVL": "1"}
        return env | lease_environment(current_lease(), env) if LEASE_VARIABLE in os.environ else env
