"""Engines: the existing executors that run what was placed, one adapter each.

To add one: write ``engines/<name>.py`` and add a row to `ENGINES`.
"""

from __future__ import annotations

GROUP = "hetero_airflow.engines"

ENGINES: dict[str, str] = {
    "local": "hetero_airflow.engines.local:LocalEngine",
    "celery": "hetero_airflow.engines.celery:CeleryEngine",
    "edge": "hetero_airflow.engines.edge:EdgeEngine",
    "kubernetes": "hetero_airflow.engines.kubernetes.engine:KubernetesEngine",
}
"""Engine name → "module:class"."""
