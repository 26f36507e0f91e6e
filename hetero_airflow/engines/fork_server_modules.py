"""The fork server of `PreloadedLocalExecutor` imports this module when it starts: what its processes have loaded."""

from __future__ import annotations

import os

import airflow.executors.local_executor
import airflow.sdk.execution_time.supervisor  # noqa: F401

import hetero_airflow.supervisor.coordinator  # noqa: F401
from hetero_airflow.engines.preload import VARIABLE, parse_preload, preload

preload(parse_preload(os.environ.get(VARIABLE, "")))
