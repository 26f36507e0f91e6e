"""What placing a device costs: queued → running, device tasks and plain ones in one run of one scheduler.

``make bench-overhead``. Device tasks go through HeteroExecutor, plain ones through LocalExecutor
beside it. There are enough devices, so no task waits for one.
"""

import tempfile
from contextlib import contextmanager
from pathlib import Path

from local_airflow import LocalAirflow
from queueing_delays import DAGS, print_delays


@contextmanager
def boot(executors):
    settings = {"AIRFLOW__CORE__EXECUTOR": executors}
    simulated = "nvidia/h100-80gb:16"
    with (
        tempfile.TemporaryDirectory() as home,
        LocalAirflow(Path(home), DAGS, simulated=simulated, settings=settings) as airflow,
    ):
        yield airflow


if __name__ == "__main__":
    print_delays(boot, "LocalExecutor")
