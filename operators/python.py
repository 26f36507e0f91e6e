"""A Python callable on devices."""

from airflow.providers.standard.operators.python import PythonOperator

from hetero_airflow.operators.device import DeviceOperator


class DevicePythonOperator(DeviceOperator, PythonOperator):
    """Airflow's PythonOperator with the arguments of `DeviceOperator`.

    >>> from hetero_airflow.operators import DevicePythonOperator
    >>> DevicePythonOperator(task_id="train", python_callable=print, device="gpu:2", quota={"memory": "40GiB.."})
    <Task(DevicePythonOperator): train>
    """
