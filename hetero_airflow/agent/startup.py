"""What the agent needs before its loop: its key, its enrolment, its signals."""

import logging
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from urllib.parse import quote

from hetero_airflow.agent.agent import retry_wait_s
from hetero_airflow.agent.connection import RefusedByServer, ServerConnection, ServerUnreachable
from hetero_airflow.agent.key_file import load_key, make_key
from hetero_airflow.agent.protocol import ENROLMENT_VARIABLE
from hetero_airflow.errors import IdentityError

log = logging.getLogger(__name__)


def key_path(home: Path, worker_id: str) -> Path:
    """Path of the key of a worker's agent, below AIRFLOW_HOME. Agents of several workers may share a home.

    >>> key_path(Path("/opt/airflow"), "node-7/gpu")
    PosixPath('/opt/airflow/hetero/agent-node-7%2Fgpu.pem')
    """
    return home / "hetero" / f"agent-{quote(worker_id, safe='')[:200]}.pem"


def open_connection(
    url: str, worker_id: str, path: Path, secret: str, *, pause: Callable[[float], bool], rng: random.Random
) -> ServerConnection | None:
    """The connection of an agent with an enrolled key; None if the agent was told to stop before.

    The secret may stay in a container's environment: a used secret enrols nothing else, and is ignored.

    :raises IdentityError: there is no key and no secret, or the server refuses the secret
    """
    key = load_key(path)
    had_key = key is not None
    if key is None and not secret:
        raise IdentityError(
            f"to speak for worker {worker_id}",
            found=f"no key in {path}, and no secret in {ENROLMENT_VARIABLE}",
            remedy=f"Run `airflow hetero enroll {worker_id}` on a host with Airflow's database; set its secret here",
        )
    connection = ServerConnection(url, worker_id, key or make_key(path))
    failures = 0
    while secret:
        try:
            connection.enrol(secret)
        except ServerUnreachable as error:
            failures += 1
            if failures == 1:
                log.warning("%s", error)
            if pause(retry_wait_s(failures, rng)):
                connection.close()
                return None
            continue
        except RefusedByServer as error:
            if not had_key:
                connection.close()
                raise
            log.warning("The agent continues with the key in %s; the server refused the secret: %s", path, error)
        return connection
    return connection


class StopSignals:
    """Waits for SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self._received = threading.Event()

    def listen(self) -> None:
        """Install the signal handlers; only in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def pause(self, seconds: float) -> bool:
        """Wait this long, or until a signal arrives; returns whether one arrived since the last call."""
        is_received = self._received.wait(seconds)
        self._received.clear()
        return is_received

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self._received.set()
