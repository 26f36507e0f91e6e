"""Engines: one adapter for each Airflow executor that runs placed tasks. They run in the scheduler's process.

To add one: write ``engines/<name>.py`` with a subclass of `AirflowEngine`, and add a row to `ENGINES`. `processes` and
`lease_files` also run on worker hosts, in the supervisor and the agent.
"""

GROUP = "hetero_airflow.engines"

ENGINES: dict[str, str] = {
    "local": "hetero_airflow.engines.local:LocalEngine",
    "celery": "hetero_airflow.engines.celery:CeleryEngine",
    "edge": "hetero_airflow.engines.edge:EdgeEngine",
    "kubernetes": "hetero_airflow.engines.kubernetes.engine:KubernetesEngine",
}
"""Engine name → "module:class"."""
