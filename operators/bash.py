"""A shell command on devices."""

import os
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import Context

from hetero_airflow.contract.task_lease import current_lease
from hetero_airflow.operators.device import DeviceOperator
from hetero_airflow.runtime.visible_devices import lease_environment
from hetero_airflow.settings import LEASE_VARIABLE


class DeviceBashOperator(DeviceOperator, BashOperator):
    """Airflow's BashOperator with the arguments of `DeviceOperator`.

    The command always gets the lease's variables, for any `env` and `append_env`. Bash does not read ``~/.bashrc``, as
    that could change them. Else it would, under systemd or cron: its input is a socket, and ``SHLVL`` is not set.

    >>> from hetero_airflow.operators import DeviceBashOperator
    >>> DeviceBashOperator(task_id="smi", bash_command="nvidia-smi -i $CUDA_VISIBLE_DEVICES", device="nvidia")
    <Task(DeviceBashOperator): smi>
    """

    def get_env(self, context: Context) -> dict[str, Any]:
        """The environment variables of the command."""
        env: dict[str, Any] = super().get_env(context) | {"SHLVL": "1"}
        return env | lease_environment(current_lease(), env) if LEASE_VARIABLE in os.environ else env
