"""How Airflow's configuration names the coordinator."""

COORDINATOR_NAME = "hetero"
COORDINATOR_CLASSPATH = "hetero_airflow.supervisor.coordinator.DeviceCoordinator"
