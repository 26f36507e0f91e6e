"""A list of the API that a thread keeps up to date by watching it.

Follows "Efficient detection of changes" in Kubernetes' API concepts: list, then watch from the list's resourceVersion,
which bookmarks advance. After 410 Gone it lists again. After any other failure it continues from the last version with
a new client, which picks up renewed credentials.
"""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from kubernetes.client import ApiClient, ApiException, CoreV1Api  # type: ignore[import-untyped]
from kubernetes.watch import Watch  # type: ignore[import-untyped]
from urllib3.exceptions import HTTPError

from hetero_airflow.errors import shorten

T = TypeVar("T")

_API = ApiClient()

PAGE_SIZE = 500
"""Number of objects in one page of a list."""

CONNECT_S, READ_S = 5.0, 30.0
"""A watch that is silent for longer starts again at its last version: its connection may be half open."""

_WATCH_S = 300
"""The API server ends a watch after this time."""

_MAX_DELAY_S = 30.0

log = logging.getLogger(__name__)


def model_of(value: Mapping[str, Any], kind: str) -> Any:
    """The official client's model of a JSON value, such as ``V1Pod``."""
    return _API.deserialize(SimpleNamespace(data=json.dumps(value)), kind)


class Informer(Generic[T]):
    """The objects of a list, as values.

    :param name: for log lines, such as ``nodes of the cluster eu``
    :param connect: makes a client; called again after each failure
    :param endpoint: gets the method that lists from a client: ``lambda api: api.list_node``
    :param read: makes a value from an object (JSON) and its earlier value; None leaves the object out
    :param query: selectors and other arguments of the endpoint
    :param on_delete: called in the thread with the last value of a deleted object
    :param delay_s: wait after a failure; doubles with each further one
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], CoreV1Api],
        endpoint: Callable[[CoreV1Api], Callable[..., Any]],
        read: Callable[[Mapping[str, Any], T | None], T | None],
        *,
        query: Mapping[str, Any] | None = None,
        on_delete: Callable[[T], None] | None = None,
        delay_s: float = 1.0,
    ) -> None:
        self.name = name
        self.changes = 0
        """Grows with each change, so that a reader can skip what it has seen."""
        self.problem: str | None = None
        """Why the values may be out of date; None if they are current."""
        self.status: int | None = None
        """HTTP status of the answer that caused the problem, if there was one."""
        self._connect, self._endpoint, self._read = connect, endpoint, read
        self._query, self._on_delete, self._delay_s = dict(query or {}), on_delete, delay_s
        self._items: dict[str, T] = {}
        self._lock = threading.Lock()
        self._is_listed, self._stopped, self._watch = threading.Event(), threading.Event(), Watch()
        self._is_watching = False
        self._thread = threading.Thread(target=self._run, name=f"hetero {name}", daemon=True)

    @property
    def is_listed(self) -> bool:
        """Whether the list was read at least once."""
        return self._is_listed.is_set()

    def start(self) -> None:
        """Begin to watch; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; does not wait for a pending answer."""
        self._stopped.set()
        self._watch.stop()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the list was read once. Returns whether that was in time."""
        return self._is_listed.wait(timeout_s)

    def values(self) -> list[T]:
        """The last known values of all objects."""
        with self._lock:
            return list(self._items.values())

    def _run(self) -> None:
        api: CoreV1Api | None = None
        version: str | None = None
        delay_s = 0.0
        while not self._stopped.is_set():
            self._is_watching = False
            try:
                api = api or self._connect()
                version = version or self._list(api)
                for newer in self._changes(api, version):
                    version, delay_s = newer, 0.0
                delay_s = delay_s or 0.05  # normal end; don't hurry a server that ends all watches at once
            except Exception as error:  # noqa: BLE001  the client, its credential plugins and TLS raise many types
                if self._stopped.is_set():
                    return
                if isinstance(error, ApiException) and error.status == 410:
                    log.info("The %s are listed again: %s", self.name, error.reason)
                    version = None
                elif not (self._is_watching and isinstance(error, HTTPError)):
                    api = None
                    self._note(error)
                # else the watch was cut or silent: it starts again at its last version
                delay_s = min(max(self._delay_s, 2 * delay_s), _MAX_DELAY_S)
            if delay_s:
                self._stopped.wait(delay_s * random.uniform(0.5, 1))  # noqa: S311  spreads many watchers

    def _list(self, api: CoreV1Api) -> str:
        items: dict[str, Mapping[str, Any]] = {}
        token = ""
        while True:
            page = json.loads(
                self._endpoint(api)(
                    limit=PAGE_SIZE,
                    **({"_continue": token} if token else {}),
                    _preload_content=False,
                    _request_timeout=(CONNECT_S, READ_S),
                    **self._query,
                ).data
            )
            items |= {_key(item): item for item in page.get("items") or ()}
            token = page["metadata"].get("continue")
            if not token:
                break
        with self._lock:
            before = dict(self._items)
        for key, item in items.items():
            self._put(key, item)
        for key in before.keys() - items.keys():
            self._drop(key)
        self._is_listed.set()
        self._clear()
        return str(page["metadata"]["resourceVersion"])

    def _changes(self, api: CoreV1Api, version: str) -> Iterator[str]:
        """Follow the changes after a version. Yields each new version."""

        def endpoint(**arguments: Any) -> Any:
            """The raw endpoint. Its name and docstring stop the client from making models of all objects."""
            answer = self._endpoint(api)(**arguments)
            self._is_watching = True
            self._clear()
            return answer

        arguments = {"allow_watch_bookmarks": True, "timeout_seconds": _WATCH_S}
        timeouts = {"_request_timeout": (CONNECT_S, READ_S)}
        for event in self._watch.stream(endpoint, resource_version=version, **arguments, **timeouts, **self._query):
            if self._stopped.is_set():
                return
            item = event["object"] if isinstance(event, dict) else None
            if item is None:
                continue
            if event["type"] == "DELETED":
                self._put(_key(item), item)  # its last state
                self._drop(_key(item))
            elif event["type"] in ("ADDED", "MODIFIED"):
                self._put(_key(item), item)
            yield item["metadata"]["resourceVersion"]

    def _put(self, key: str, item: Mapping[str, Any]) -> None:
        before = self._items.get(key)
        try:
            value = self._read(item, before)
        except Exception as error:  # noqa: BLE001  one odd object must not hide all others
            log.warning("One of the %s can't be read: %s: %s", self.name, type(error).__name__, shorten(str(error)))
            value = before
        if value == before:
            return
        with self._lock:
            if value is None:
                self._items.pop(key, None)
            else:
                self._items[key] = value
            self.changes += 1

    def _drop(self, key: str) -> None:
        with self._lock:
            value = self._items.pop(key, None)
            self.changes += value is not None
        if value is not None and self._on_delete is not None:
            self._on_delete(value)

    def _note(self, error: Exception) -> None:
        text = _error_text(error)
        if text != self.problem:
            log.warning("The %s can't be watched: %s", self.name, text)
        self.problem = text
        self.status = error.status if isinstance(error, ApiException) else None  # set last: a waiting reader reads both

    def _clear(self) -> None:
        if self.problem is not None:
            log.info("The %s are watched again.", self.name)
        self.problem = self.status = None


_REMEDIES = {
    401: "the credentials are refused; renew them. Waiting tasks keep waiting, running tasks go on",
    403: "it is not allowed; give Airflow's service account the ClusterRole of docs/kubernetes.md",
}


def _error_text(error: Exception) -> str:
    if isinstance(error, ApiException):
        hint = _REMEDIES.get(error.status)
        with suppress(ValueError, TypeError, KeyError):
            hint = hint or shorten(json.loads(error.body)["message"])
        return f"{error.status} {error.reason}" + (f": {hint}" if hint else "")
    return f"{type(error).__name__}: {shorten(str(error), 300)}"


def _key(item: Mapping[str, Any]) -> str:
    metadata = item["metadata"]
    return str(metadata.get("uid") or f"{metadata.get('namespace', '')}/{metadata['name']}")
