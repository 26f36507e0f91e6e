"""The modules that the DAGs import, for the tests."""

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

DAGS = Path(__file__).parent / "dags"


@functools.cache
def dag_module(name: str) -> ModuleType:
    """A file of the folder ``dags``."""
    spec = importlib.util.spec_from_file_location(name, DAGS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
