"""How Airflow's configuration names the coordinator."""

NAME = "hetero"
CLASSPATH = "hetero_airflow.executor.coordinator.DeviceCoordinator"
