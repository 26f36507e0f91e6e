"""The fork server of `PreloadedExecutor` imports this module when it starts: what its processes have loaded."""

import os
from importlib import import_module

from hetero_airflow.engines.preload import VARIABLE, parse_preload, preload

LOADED = (
    "hetero_airflow.engines.host.local_worker",
    "airflow.sdk.execution_time.supervisor",
    "hetero_airflow.supervisor.coordinator",  # this layer knows only its name, as the configuration does
)
"""What each process of a task imports anyway."""

for name in LOADED:
    import_module(name)
preload(parse_preload(os.environ.get(VARIABLE, "")))
