from __future__ import annotations

import errno
import resource
from pathlib import Path

import numpy as np
import pytest

from hetero_airflow.runtime.state.files import write_state
from hetero_airflow.runtime.state.tree import stage


def test_a_full_disk_is_an_os_error_for_every_writer(tmp_path: Path) -> None:
    staged = stage({"weights": np.zeros(1 << 16)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_state(staged, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
