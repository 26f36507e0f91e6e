"""Sensors that wait for devices and checkpoints.

The folder stands at the root of the repository and is the package `hetero_airflow.sensors`. It has
no sensor yet.
"""

if __name__ == "sensors":
    raise ImportError("import hetero_airflow.sensors instead: a second copy of the classes would appear")
