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
from hetero_airflow.model.request_fields import read_data
from hetero_airflow.settings import SECTION, default

_MODULE = "hetero_airflow.runtime.data.prefetch"
_NO = ("no", "false", "0")


def data_ahead(operator: BaseOperator) -> list[str]:
    """The URLs of `data` of the device tasks that directly follow, each once.

    Those that the task itself reads or writes are left out, and templates, which have no value yet.
    """
    own = {*_data_of(operator), *(outlet.uri for outlet in operator.outlets if isinstance(outlet, Asset))}
    tasks = sorted(operator.downstream_list, key=lambda task: task.task_id)
    following = dict.fromkeys(url for task in tasks for url in _data_of(task))
    return [url for url in following if url not in own]


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
    reader = subprocess.Popen([sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, text=True)
    with reader:
        assert reader.stdin is not None
        with suppress(BrokenPipeError):
            reader.stdin.write(f"{json.dumps(urls)}\n")
            reader.stdin.flush()
        try:
            yield
        finally:
            reader.kill()
