"""Records the key for grants in the store of checkpoints: ``python -m hetero_airflow.executor.store_key KEY``.

A process of its own does it, since the store may not answer, and a fork of the scheduler must not find a thread that
imports boto3.
"""

import logging
import subprocess
import sys
from contextlib import suppress

from hetero_airflow.checkpoints.configured import checkpoint_options, record_installation_key
from hetero_airflow.errors import HeteroError, SettingsError


def start_recording(key: str) -> subprocess.Popen[bytes] | None:
    """Start the process; None if no store is configured: the supervisors do it in their hosts' folders."""
    with suppress(SettingsError):  # `airflow hetero config --check` and the tasks report it
        if not checkpoint_options().is_default:
            return subprocess.Popen([sys.executable, "-P", "-m", __name__, key], stdin=subprocess.DEVNULL)
    return None


def main(key: str) -> None:
    """Record the key. A failure is only logged."""
    try:
        record_installation_key(key)
    except HeteroError as error:
        logging.getLogger(__name__).warning("Forged grants are not refused in the store of checkpoints: %s", error)


if __name__ == "__main__":
    main(sys.argv[1])
