"""``airflow hetero config --check``: tries what can be tried: a lease, a checkpoint, a call of the API server."""

import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from datetime import UTC, datetime
from uuid import uuid4

from airflow.configuration import conf
from airflow.executors.base_executor import get_execution_api_server_url
from airflow.sdk.api.client import Client
from sqlalchemy import Engine

from hetero_airflow.checkpoints.configured import checkpoint_options, configured_store, record_installation_key
from hetero_airflow.checkpoints.filesystem import FilesystemStore
from hetero_airflow.checkpoints.opening import check_url
from hetero_airflow.cli.setup.checks import Finding
from hetero_airflow.contract.execution_api import find_problem
from hetero_airflow.engines.preload import PRELOADING, preload_problem, preload_setting
from hetero_airflow.errors import CheckpointStoreUnavailable, HeteroError, SettingsError
from hetero_airflow.settings import SECTION, default
from hetero_airflow.store.sql.lease_trial import try_lease
from hetero_airflow.store.sql.worker_keys import grant_signer

_TIMEOUT_S = 3.0
_FOLDER = "hetero_check"
_CONTENT = b"a trial of airflow hetero config --check"


def trials(engine: Engine) -> Iterator[Finding]:
    """The result of each trial. Blocks for some seconds where a service does not answer."""
    yield _trial("one lease", lambda: try_lease(engine, datetime.now(UTC)), "granted and released", "no task starts")
    if (url := _checkpoint_url()) is not None:
        cost = "device tasks can't save, and fail when they start"
        yield _trial("one checkpoint", _save_and_read, f"written and read at {url}", cost)
        cost = "tasks with forged grants can save there, or no device task can"
        yield _trial(
            "the key for grants",
            lambda: record_installation_key(grant_signer(engine).public_key),
            f"recorded at {url}",
            cost,
        )
    yield _api_server()
    yield from _preload()


def _trial(subject: str, attempt: Callable[[], None], done: str, cost: str) -> Finding:
    try:
        attempt()
    except HeteroError as error:
        return Finding(subject, f"{error.asked}, found {error.found}", error.remedy, cost)
    return Finding(subject, done)


def _checkpoint_url() -> str | None:
    """None for a URL that can't be read, which is a finding of `check_checkpoints`."""
    try:
        url = checkpoint_options().url
        check_url(url)
    except SettingsError:
        return None
    return url


def _save_and_read() -> None:
    """Write and read a small object, as a task does, and delete it."""
    options = checkpoint_options()
    store = configured_store(options)
    name = f"trial-{uuid4().hex}"
    key = f"{_FOLDER}/{name}/trial.json"
    try:
        store.replace(key, _CONTENT, None)
        stored = store.read(key, at_most=len(_CONTENT))
        if stored is None or stored.content != _CONTENT:
            raise CheckpointStoreUnavailable(
                options.url, found="another content than was written", remedy="Use another"
            )
    finally:
        list(store.sweep(_FOLDER, lambda folder, age_s: folder == name))
        if isinstance(store, FilesystemStore):
            with suppress(OSError):  # another check uses the folder
                (store.root / _FOLDER).rmdir()


def _preload() -> Iterator[Finding]:
    """Nothing without preload, and for an option that can't be read, which is a finding of `check_options`."""
    subject = "[hetero] preload"
    engine = conf.get(SECTION, "engine", fallback=default("engine"))
    with suppress(SettingsError):
        names = preload_setting()
        if names and engine not in PRELOADING:
            remedy = f"Leave it out; it works with engine = {' or '.join(PRELOADING)}"
            yield Finding(
                subject, f"no effect with engine = {engine}", remedy, "tasks import the modules", is_advice=True
            )
        elif names:
            problem = preload_problem(names)
            remedy = "Correct the option; this host may also lack what the workers have" if problem else ""
            yield Finding(subject, problem or f"{', '.join(names)} can be preloaded here", remedy, "tasks run without")


def _api_server() -> Finding:
    url = get_execution_api_server_url(conf)
    # the client logs to standard output, which is for the findings
    with redirect_stdout(sys.stderr), Client(base_url=url, token="", timeout=_TIMEOUT_S) as client:
        problem = find_problem(client)
    subject = f"API server at {url}"
    if problem is None:
        return Finding(subject, "it answers")
    remedy = "Start it with `airflow api-server`, or correct [core] execution_api_server_url"
    return Finding(subject, f"no answer: {problem}", remedy, "no device task starts")
