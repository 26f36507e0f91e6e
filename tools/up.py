"""``make up``: an Airflow with the example DAGs that runs until Ctrl-C. Its folder is ``.airflow/up``."""

import signal
import sys

from foreground import ROOT, StillRunning, running_airflow
from local_airflow import USER

from hetero_airflow.cli.output import cell, show
from hetero_airflow.settings import SIMULATED_DEVICES_VARIABLE

HOME = ROOT / ".airflow" / "up"


def main() -> int:
    """Run it; return 0 if it was asked to stop, 1 if it could not start."""
    show(cell(f"Starting Airflow in {HOME} …"))
    try:
        with running_airflow(HOME) as airflow:
            show(
                cell(f"Airflow runs at {airflow.url}", style="bold"),
                cell(f"  user      {USER}", f"  password  {airflow.password}", f"  logs      {HOME}"),
                cell("For simulated accelerators, start it with"),
                cell(f'  {SIMULATED_DEVICES_VARIABLE}="nvidia/h100-80gb:2,ascend/910b:2" make up'),
                cell("Ctrl-C stops it."),
            )
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except (StillRunning, RuntimeError, TimeoutError) as error:
        show(cell(*str(error).splitlines(), style="red"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
