"""The Airflow plugin. It registers no listener: any would break DAGs with ``end_from_trigger=True``."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class HeteroPlugin(AirflowPlugin):
    """Makes ``airflow plugins`` list the package."""

    name = "hetero_airflow"
