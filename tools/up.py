"""``make up``: an Airflow with the example DAGs that runs until Ctrl-C. Its folder is ``.airflow/up``."""

import shlex
import signal
import sys
from pathlib import Path

from foreground import ROOT, StillRunning, running_airflow
from local_airflow import USER, LocalAirflow

from hetero_airflow.cli.output import cell, show
from hetero_airflow.settings import SIMULATED_DEVICES_VARIABLE

HOME = ROOT / ".airflow" / "up"


def write_exports(airflow: LocalAirflow) -> Path:
    """Write a file that a shell reads to have this Airflow's environment. Only this user can read its secrets."""
    path = HOME / "environment.sh"
    path.touch(mode=0o600)
    settings = {name: value for name, value in airflow.environment.items() if name.startswith(("AIRFLOW", "HETERO"))}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(settings.items())]
    folder = shlex.quote(str(Path(sys.executable).parent))
    path.write_text("\n".join([*lines, f'export PATH={folder}:"$PATH"', ""]))
    return path


def main() -> int:
    """Run it; return 0 if it was asked to stop, 1 if it could not start."""
    show(cell(f"Starting Airflow in {HOME} …"))
    try:
        with running_airflow(HOME) as airflow:
            exports = write_exports(airflow)
            show(
                cell(f"Airflow runs at {airflow.url}", style="bold"),
                cell(f"  user      {USER}", f"  password  {airflow.password}", f"  logs      {HOME}"),
                cell("For the commands of Airflow, in another terminal:"),
                cell(f"  . {exports} && airflow hetero queue"),
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
