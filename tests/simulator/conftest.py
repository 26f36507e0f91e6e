"""The public data sets, if they are present."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def public_traces() -> Path:
    """The folder that HETERO_AIRFLOW_TRACES names."""
    folder = Path(os.environ.get("HETERO_AIRFLOW_TRACES", ""))
    if folder == Path() or not folder.is_dir():
        pytest.skip("HETERO_AIRFLOW_TRACES names no folder with the public traces")
    return folder
