"""While a task runs, the data of the tasks after it comes into the cache of its host, with the task's credentials."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.configuration import conf

from hetero_airflow.contract.envelope import ENVELOPE_KEY, is_device_task, is_template
from hetero_airflow.errors import RequestError
from hetero_airflow.model.request_fields import MAX_DATA_URLS, read_data
from hetero_airflow.settings import SECTION, default

_MODULE = "hetero_airflow.runtime.data.prefetch"
_NO = ("no", "false", "0")


def data_ahead(operator: BaseOperator) -> list[str]:
    """The URLs of `data` of the device tasks that directly follow, each once.

    What the task itself reads is left out, and what it writes: outlets, what is below them, and folders with them. So
    are templates, which have no value yet.
    """
    tasks = sorted(operator.downstream_list, key=lambda task: task.task_id) if operator.has_dag() else ()
    following = dict.fromkeys(url for task in tasks for url in _data_of(task))
    own = [*_data_of(operator)] if following else []
    written = [outlet.uri for outlet in operator.outlets if isinstance(outlet, Asset)]
    is_left_out = {
        url: any(_is_within(url, other) for other in own + written) or any(_is_within(other, url) for other in written)
        for url in following
    }
    return [url for url in following if not is_left_out[url]][:MAX_DATA_URLS]


def _is_within(url: str, folder: str) -> bool:
    return f"{url.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def _data_of(operator: Any) -> Iterator[str]:
    config = getattr(operator, "executor_config", None)
    for entry in config[ENVELOPE_KEY]["requests"] if is_device_task(config) else ():
        yield from _urls((entry.get("template") or entry.get("request")).get("data") or ())


def _urls(given: str | Iterable[str]) -> Iterator[str]:
    for url in [given] if isinstance(given, str) else given:
        with suppress(RequestError):
            yield from () if is_template(url) else read_data(url)


@contextmanager
def data_read_ahead(operator: BaseOperator) -> Iterator[None]:
    """Within the context, a process at the lowest priority reads the data of the next tasks; it ends with it."""
    urls = data_ahead(operator)
    if not urls or conf.get(SECTION, "data_ahead", fallback=default("data_ahead")).strip().lower() in _NO:
        yield
        return
    reader = _started(urls, operator.log)
    try:
        yield
    finally:
        if reader is not None:
            _end(reader)


def _started(urls: list[str], log: Any) -> "subprocess.Popen[bytes] | None":
    """The process; None if the host has no room for it. The URLs fit into the pipe, so this never waits."""
    try:
        reader = subprocess.Popen([sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, bufsize=0)
    except OSError as error:
        log.info("The data of the next tasks is not read ahead: %s", error)
        return None
    assert reader.stdin is not None
    with suppress(OSError):
        reader.stdin.write(f"{json.dumps(urls)}\n".encode())
    return reader


def _end(reader: "subprocess.Popen[bytes]") -> None:
    """A process that hangs in a slow disk does not keep the task: it ends when the disk answers."""
    reader.kill()
    assert reader.stdin is not None
    reader.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        reader.wait(1)
