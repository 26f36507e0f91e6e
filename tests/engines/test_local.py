import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from hetero_airflow.engines.local import LocalEngine


@pytest.fixture
def process():
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_clock_that_is_set_forward_hides_no_process_that_was_known(process):
    """Airflow last saw it on the clock as it was, and by the clock as it is now the process began after that."""
    engine, now = LocalEngine(1), datetime.now(UTC)
    before_the_jump = now - timedelta(hours=1)
    assert engine.processes({"lease": (process.pid, now)}) == {"lease": [process.pid]}
    assert engine.processes({"lease": (process.pid, before_the_jump)}) == {"lease": [process.pid]}
    assert LocalEngine(1).processes({"lease": (process.pid, before_the_jump)}) == {}
    process.kill()
    process.wait()
    assert engine.processes({"lease": (process.pid, before_the_jump)}) == {}
