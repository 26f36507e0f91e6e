"""A Python callable on devices."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from airflow.providers.standard.operators.python import PythonOperator

from hetero_airflow.contract.operator_keywords import PythonKeywords
from hetero_airflow.operators.device import DeviceOperator, DeviceTaskKeywords


class DevicePythonKeywords(DeviceTaskKeywords, PythonKeywords, total=False):
    """The keywords of a function on devices."""


class DevicePythonOperator(DeviceOperator, PythonOperator):
    """Airflow's PythonOperator with the arguments of `DeviceOperator`.

    >>> from hetero_airflow.operators import DevicePythonOperator
    >>> DevicePythonOperator(task_id="train", python_callable=print, device="gpu:2", quota={"memory": "40GiB.."})
    <Task(DevicePythonOperator): train>
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            task_id: str,
            python_callable: Callable[..., Any],
            op_args: Collection[Any] | None = None,
            op_kwargs: Mapping[str, Any] | None = None,
            **kwargs: Unpack[DevicePythonKeywords],
        ) -> None: ...
