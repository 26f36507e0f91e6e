"""What comes before the agent's loop: its key, and its enrolment where it has a secret for that."""

from __future__ import annotations

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
    """Where the key of a worker's agent is, below AIRFLOW_HOME; agents of several workers may share a home.

    >>> key_path(Path("/opt/airflow"), "node-7/gpu")
    PosixPath('/opt/airflow/hetero/agent-node-7%2Fgpu.pem')
    """
    return home / "hetero" / f"agent-{quote(worker_id, safe='')[:200]}.pem"


def open_connection(
    url: str, worker_id: str, path: Path, secret: str, *, pause: Callable[[float], bool], rng: random.Random
) -> ServerConnection | None:
    """The connection of an agent that has a key which is enrolled, as far as it can tell; None if told to stop before.

    The secret may stay in a container's environment: once it is used, it enrols nothing else, and is passed over.

    :raises IdentityError: no key and no secret, or a secret that the server refuses
    """
    key = load_key(path)
    had_key = key is not None
    if key is None and not secret:
        raise IdentityError(
            f"to speak for worker {worker_id}",
            found=f"no key in {path}, and no secret in {ENROLMENT_VARIABLE}",
            remedy=f"Run `airflow hetero enroll {worker_id}` where Airflow's database is, and give its secret here",
        )
    link = ServerConnection(url, worker_id, key or make_key(path))
    failures = 0
    while secret:
        try:
            link.enrol(secret)
        except ServerUnreachable as error:
            failures += 1
            if failures == 1:
                log.warning("%s", error)
            if pause(retry_wait_s(failures, rng)):
                link.close()
                return None
            continue
        except RefusedByServer as error:
            if not had_key:
                link.close()
                raise
            log.warning("Going on with the key in %s; the secret was not taken: %s", path, error)
        return link
    return link


class StopSignals:
    """SIGTERM and SIGINT as something to wait for."""

    def __init__(self) -> None:
        self._told = threading.Event()

    def listen(self) -> None:
        """Take the signals; only in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def pause(self, seconds: float) -> bool:
        """Wait so long, or until a signal comes; whether one came since the last call."""
        told = self._told.wait(seconds)
        self._told.clear()
        return told

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self._told.set()
