"""``airflow hetero worker``: the agent of a worker host. It opens no database; it reports to Airflow's API server."""

import logging
import os
import pwd
import random
from argparse import Namespace
from functools import partial
from pathlib import Path

from airflow.configuration import AIRFLOW_HOME

from hetero_airflow.agent.agent import Agent
from hetero_airflow.agent.error_watch import ErrorWatch
from hetero_airflow.agent.lease_watch import LeaseWatch
from hetero_airflow.agent.protocol import ENROLMENT_VARIABLE, POD_TOKEN_PATH, SCHEDULER_ENGINE
from hetero_airflow.agent.startup import StopSignals, key_path, open_connection
from hetero_airflow.checkpoints.configured import data_cache_root
from hetero_airflow.cli.action import action
from hetero_airflow.cli.workers.enrolment import check_name
from hetero_airflow.discovery.inventory_watch import InventoryWatch
from hetero_airflow.discovery.readings_watch import ReaderProcess, ReadingsWatch
from hetero_airflow.discovery.spot import SpotWatch, notice_source
from hetero_airflow.discovery.used_devices import UsedDevices
from hetero_airflow.engines.remote import worker_queue
from hetero_airflow.errors import HeteroError, shorten
from hetero_airflow.executor.configuration import Configuration, read_configuration
from hetero_airflow.model.worker import parse_labels
from hetero_airflow.runtime.data.holdings import HoldingsWatch

log = logging.getLogger(__name__)


@action
def worker(args: Namespace) -> None:
    """Run the agent of this host."""
    home = Path(AIRFLOW_HOME)
    names = {"name": args.name, "engine": args.engine, "labels": args.labels, "user": args.user}
    run_agent(read_configuration(), home, url=args.url, **names)


def run_agent(
    configuration: Configuration,
    home: Path,
    *,
    url: str,
    name: str | None,
    engine: str,
    labels: str | None,
    user: str | None = None,
) -> None:
    """Run the agent of this host until a signal asks it to stop.

    The first signal lets the tasks of this host finish. A second one ends the agent at once, and the tasks are lost.

    :raises HeteroError: the agent has no key, the server refuses it for good, the labels can't be read, or there
        is no such user
    """
    worker_id = check_name(name or configuration.worker_id)
    if engine == SCHEDULER_ENGINE:
        raise HeteroError(
            f"--engine {engine}", found="the scheduler's own engine", remedy="Name the engine of this host"
        )
    worker_labels = configuration.labels if labels is None else parse_labels(labels, "--labels")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs a line for each heartbeat
    log.info("Queue %s belongs to this worker alone.", worker_queue(worker_id))
    leases = LeaseWatch(worker_id, user=None if user is None else _number_of_user(user))
    signals, rng = StopSignals(), random.Random()  # noqa: S311  spreads retries, nothing secret
    signals.listen()
    # The processes that discovery starts must not see the secret.
    secret = os.environ.pop(ENROLMENT_VARIABLE, "") or pod_token(Path(POD_TOKEN_PATH))
    connection = open_connection(url, worker_id, key_path(home, worker_id), secret, pause=signals.pause, rng=rng)
    if connection is None:
        return
    interval_s, timeout_s = configuration.discovery_interval_s, configuration.probe_timeout_s
    watch = InventoryWatch(
        worker_id,
        worker_labels,
        interval_s=interval_s,
        probe_timeout_s=timeout_s,
        exclude=configuration.exclude_devices,
    )
    errors, used = ErrorWatch(), UsedDevices(configuration.allowed_processes)
    spot = SpotWatch(notice_source(configuration.spot_notices))
    readings = ReadingsWatch(partial(ReaderProcess, timeout_s=timeout_s))
    ports = (watch, leases, errors, connection)
    look_at_data = HoldingsWatch(data_cache_root()).data
    try:
        Agent(
            worker_id, engine, *ports, used=used, spot=spot, readings=readings, look_at_data=look_at_data,
            pause=signals.pause, rng=rng,
        ).run()  # fmt: skip
    finally:
        spot.close()
        readings.close()
        watch.close()
        errors.close()
        connection.close()


def pod_token(path: Path) -> str:
    """The token of the service account with which a pod enrols; empty where none is mounted.

    :raises HeteroError: it can't be read
    """
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        remedy = "Let the user of the agent read it: set fsGroup in the pod's securityContext"
        raise HeteroError(str(path), found=type(error).__name__, remedy=remedy) from error


def _number_of_user(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise HeteroError(
            f"--user {shorten(name)}", found="no such user on this host", remedy="Name the user that runs the tasks"
        ) from None
