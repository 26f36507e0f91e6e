"""Sensors that wait for devices and checkpoints, and an event trigger that starts a DAG on a new checkpoint.

The folder stands at the root of the repository and is the package `hetero_airflow.sensors`.
"""

if __name__ == "sensors":
    raise ImportError("import hetero_airflow.sensors instead: a second copy of the classes would appear")

from hetero_airflow.sensors.checkpoint import CheckpointSensor
from hetero_airflow.sensors.checkpoint_trigger import CheckpointPublished
from hetero_airflow.sensors.device_available import DeviceAvailableSensor

__all__ = ["CheckpointPublished", "CheckpointSensor", "DeviceAvailableSensor"]
