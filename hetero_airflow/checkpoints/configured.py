"""The place of a task's checkpoints from the section [hetero], and its credentials from an Airflow connection.

Only this module reads the options ``checkpoint_…`` and ``data_cache…``. The device
operator uses it for the checkpoints of its task, sensors and triggers for those of other tasks.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow.configuration import get_airflow_home
from airflow.sdk import Connection
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from hetero_airflow.checkpoints import OBJECT_STORES, aws_connection, azure_connection, google_connection
from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.fencing import record_key
from hetero_airflow.checkpoints.opening import open_store, split_url
from hetero_airflow.checkpoints.place import CheckpointPlace, checkpoint_path
from hetero_airflow.contract.data_settings import DataSettings
from hetero_airflow.contract.local_run import is_local_run, local_checkpoint_url
from hetero_airflow.errors import RequestError, SettingsError, shorten
from hetero_airflow.settings import SECTION, default
from hetero_airflow.units import parse_bytes

log = logging.getLogger(__name__)

_READERS: Mapping[str, tuple[str, ModuleType]] = {
    "wasb": ("az", azure_connection),
    "google_cloud_platform": ("gs", google_connection),
}
"""Type of a connection → scheme of its store, and what reads it; all other types are read as aws."""

_TYPES = {"az": "wasb", "gs": "google_cloud_platform", "s3": "aws"}

_ENDPOINTS = {"s3": aws_connection.ENDPOINT_VARIABLE, "az": azure_connection.ENDPOINT_VARIABLE}
"""Scheme of a URL → variable with the endpoint of the connection."""


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """The options of [hetero] about checkpoints. Contains no secret."""

    url: str
    """``file:///folder``, ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``."""
    conn_id: str = ""
    """Empty: the store's library searches for credentials itself."""
    endpoints: tuple[str, ...] = ()
    """Endpoints that are allowed besides those of the providers and of the connection."""
    is_default: bool = False
    """No URL is configured: other hosts may not share the folder of this one."""


def checkpoint_options() -> CheckpointOptions:
    """The options as configured on this host. Endpoints are checked when a store is opened.

    A local run has a folder of its own, so that it never touches the checkpoints of a scheduler's run. The connection
    and the endpoints count there for its data.

    :raises SettingsError: the URL can't be read
    """
    endpoints = tuple(text.strip() for text in _text("checkpoint_endpoints").split(",") if text.strip())
    if is_local_run():
        return CheckpointOptions(local_checkpoint_url(), _text("checkpoint_conn_id"), endpoints)
    configured = _text("checkpoint_url")
    url = configured or (Path(get_airflow_home()).resolve() / "checkpoints").as_uri()
    split_url(url)
    return CheckpointOptions(url.rstrip("/"), _text("checkpoint_conn_id"), endpoints, is_default=not configured)


def checkpoint_place(
    dag_id: str,
    task_id: str,
    run_id: str,
    map_index: int,
    *,
    epoch: int | None = 0,
    token: int | None = None,
    options: CheckpointOptions,
    credentials: Mapping[str, str] | None = None,
) -> CheckpointPlace:
    """The place of the checkpoints of a task instance.

    :param epoch: the task instance's ``max_tries``; None: see `CheckpointPlace.epoch`
    :param token: fencing token of the lease; None without one
    :param credentials: see `store_credentials`; their endpoint is used and allowed

    >>> options = CheckpointOptions("s3://models/team-a", endpoints=("https://minio.example:9000",))
    >>> checkpoint_place("etl", "fit", "r1", -1, epoch=2, token=7, options=options).path
    'etl/fit/r1/-1'
    """
    return CheckpointPlace(
        path=checkpoint_path(dag_id, task_id, run_id, map_index),
        epoch=epoch,
        token=token,
        **store_fields(options.url, options, credentials or {}),
    )


def store_fields(url: str, options: CheckpointOptions, credentials: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a place that say in which store it is. The connection's endpoint counts for its kind of store."""
    endpoint = credentials.get(_ENDPOINTS.get(split_url(url).scheme, ""))
    allowed = (*options.endpoints, *((endpoint,) if endpoint and endpoint not in options.endpoints else ()))
    return {"url": url, "endpoint": endpoint, "endpoints": allowed}


def store_credentials(options: CheckpointOptions) -> Mapping[str, str]:
    """The environment variables for the connection; empty without one. Blocks: a trigger calls it in a thread.

    From then on Airflow masks the secrets among them in the logs of this process.

    :raises SettingsError: there is no such connection, and this is no local run; it can't be read, or it is of another
        kind of store
    """
    if not options.conn_id:
        return {}
    asked = f"[{SECTION}] checkpoint_conn_id = {shorten(options.conn_id)}"
    try:
        connection = Connection.get(options.conn_id)
    except AirflowNotFoundException:
        if is_local_run():  # whose checkpoints need none; its data may be read by the user's own identity
            log.warning("There is no connection %s here. Data are read without it.", shorten(options.conn_id))
            return {}
        remedy = "Add it with `airflow connections add`, or leave the option empty"
        raise SettingsError(asked, found="no such connection", remedy=remedy) from None
    scheme, module = _READERS.get(connection.conn_type, ("s3", aws_connection))
    configured = split_url(options.url).scheme
    if configured != scheme and configured in OBJECT_STORES:
        found = f"a connection of the type {shorten(connection.conn_type)} for a checkpoint_url of {configured}://"
        raise SettingsError(asked, found=found, remedy=f"Use a connection of the type {_TYPES[configured]}")
    variables: Mapping[str, str] = module.variables_of(connection)
    mask_secret([variables[name] for name in module.SECRETS if variables.get(name)])
    return variables


def data_settings(options: CheckpointOptions, credentials: Mapping[str, str]) -> DataSettings:
    """What a task is told about data.

    :raises SettingsError: an option can't be read
    """
    own = {scheme: credentials[name] for scheme, name in _ENDPOINTS.items() if name in credentials}
    size = _text("data_cache_size")
    try:
        size_bytes = parse_bytes(size, "data_cache_size") if size else None
    except RequestError as error:
        asked = f"[{SECTION}] data_cache_size = {shorten(size)}"
        raise SettingsError(asked, found=error.found, remedy=error.remedy) from None
    return DataSettings(
        folder=_text("data_cache") or None,
        size_bytes=size_bytes,
        own_endpoints=own,
        endpoints=(*options.endpoints, *own.values()),
    )


def data_cache_root() -> Path:
    """The cache folder of this process's user, as tasks have it that run as this user."""
    return DataSettings(folder=_text("data_cache") or None).root


def configured_store(options: CheckpointOptions) -> CheckpointStore:
    """The store of the options. The connection's credentials stay in this process's environment.

    :raises SettingsError: an option can't be used
    """
    credentials = store_credentials(options)
    os.environ.update(credentials)
    return open_store(checkpoint_place("-", "-", "-", -1, options=options, credentials=credentials))


def record_installation_key(key: str) -> None:
    """Record the key that signs this installation's grants in the configured store, before tasks use it.

    The default folder belongs to this host alone, so another key there is of a former database and is replaced. In a
    configured store, which others may use, it stays.

    :raises GrantRefused: the store has another installation's key
    :raises HeteroError: the store can't be used
    """
    options = checkpoint_options()
    if split_url(options.url).scheme == "file":
        options = replace(options, conn_id="")  # a folder needs no connection
    record_key(configured_store(options), key, replaces=options.is_default)


def _text(name: str) -> str:
    return str(conf.get(SECTION, name, fallback=default(name))).strip()
