"""The fork server of `PreloadedExecutor` imports this module when it starts: what its processes have loaded."""

import os

from hetero_airflow.engines.preload import LOADED, VARIABLE, parse_preload, preload

preload([*LOADED, *parse_preload(os.environ.get(VARIABLE, ""))])
