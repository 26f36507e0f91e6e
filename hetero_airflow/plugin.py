"""The Airflow plugin. It registers no listener: any would break DAGs with ``end_from_trigger=True``.

Every process of Airflow loads it, also that of each task. Only the API server imports FastAPI and our routes.
"""

import sys
from typing import Any

from airflow.plugins_manager import AirflowPlugin

IS_API_SERVER = sys.argv[1:2] == ["api-server"]


def _fastapi_apps() -> list[dict[str, Any]]:
    """Our routes, in the API server, which alone runs the command ``api-server``."""
    if not IS_API_SERVER:
        return []
    from hetero_airflow.agent.protocol import PREFIX
    from hetero_airflow.web.app import make_app

    return [{"app": make_app(), "url_prefix": PREFIX, "name": "hetero_airflow"}]


def _react_apps() -> list[dict[str, Any]]:
    """Our pages in Airflow's UI."""
    if not IS_API_SERVER:
        return []
    from hetero_airflow.web.page.bundle import react_apps

    return react_apps()


class HeteroPlugin(AirflowPlugin):
    """Makes ``airflow plugins`` list the package, and adds routes and pages to the API server."""

    name = "hetero_airflow"
    fastapi_apps = _fastapi_apps()
    react_apps = _react_apps()
