"""A list of the API that a thread keeps up to date by watching it.

Follows "Efficient detection of changes" in Kubernetes' API concepts: list, then watch from the list's resourceVersion,
which bookmarks advance. A watch that is cut continues from the last version. After 410 Gone it lists again at once.
After any other failure it lists again with a new client, which picks up renewed credentials; until then its values
count as out of date. An answer to the watch alone does not end that: a server that has just restarted may open a watch
and only then find that the version is too old.
"""

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from kubernetes.client import ApiClient, ApiException, CoreV1Api  # type: ignore[import-untyped]
from kubernetes.watch import Watch  # type: ignore[import-untyped]
from urllib3.exceptions import HTTPError

from hetero_airflow.engines.kubernetes.outage import Outage
from hetero_airflow.errors import shorten

T = TypeVar("T")

_API = ApiClient()

PAGE_SIZE = 500
"""Number of objects in one page of a list."""

CONNECT_S, READ_S = 5.0, 30.0
"""A watch that is silent for longer starts again at its last version: its connection may be half open."""

_WATCH_S = 300
"""The API server ends a watch after this time."""

_MAX_DELAY_S = 10.0

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
    :param outage: of the cluster, to which all lists belong
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
        outage: Outage | None = None,
    ) -> None:
        self.name = name
        self.changes = 0
        """Grows with each change, so that a reader can skip what it has seen."""
        self.outages = 0
        """How many outages have ended: the server did not answer, or the watch was silent for long."""
        self.problem: str | None = None
        """Why the values may be out of date; None if they are current."""
        self.status: int | None = None
        """HTTP status of the answer that caused the problem, if there was one."""
        self._connect, self._endpoint, self._read = connect, endpoint, read
        self._query, self._on_delete, self._delay_s = dict(query or {}), on_delete, delay_s
        self._outage = outage or Outage("the cluster")
        self._items: dict[str, T] = {}
        self._lock = threading.Lock()
        self._is_listed, self._stopped, self._watch = threading.Event(), threading.Event(), Watch()
        self._api: CoreV1Api | None = None
        self._version: str | None = None
        """Where to continue; None if a list must be read first."""
        self._is_watching, self._is_just_listed, self._wait_s = False, False, 0.0
        self._heard_at = float("inf")
        """When the server last sent something in a watch."""
        self._random = random.Random()  # noqa: S311  spreads many watchers
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
        while not self._stopped.is_set():
            self._is_watching = False
            try:
                self._follow()
                self._wait_s = self._wait_s or 0.05  # normal end; don't hurry a server that ends all watches at once
            except Exception as error:  # noqa: BLE001  the client, its credential plugins and TLS raise many types
                if self._stopped.is_set():
                    return
                self._recover(error)
            if self._wait_s:
                self._stopped.wait(self._wait_s * self._random.uniform(0.5, 1))

    def _follow(self) -> None:
        """List if there is no version to continue from, then watch until the watch ends."""
        self._api = self._api or self._connect()
        self._is_just_listed = self._version is None
        if self._version is None:
            self._version, self._wait_s = self._list(self._api), 0.0
        for newer in self._changes(self._api, self._version):
            self._version, self._is_just_listed, self._wait_s = newer, False, 0.0

    def _recover(self, error: Exception) -> None:
        """Decide from where to continue, and when."""
        is_expired = isinstance(error, ApiException) and error.status == 410
        if is_expired and not self._is_just_listed:
            self._wait_s = 0.0  # at once, however long the last outage was
        else:
            self._wait_s = min(max(self._delay_s, 2 * self._wait_s), _MAX_DELAY_S)
        if is_expired:
            log.info("The %s are listed again: their last version is too old", self.name)
            self.problem, self._version = "their last version is too old; they are listed again", None
        elif not (self._is_watching and isinstance(error, HTTPError)):
            self._api = self._version = None
            self._note(error)
        else:  # the watch was cut, or nothing happened: it starts again at its last version
            self._wait_s = self._delay_s

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
            self._note_heard()
            return answer

        arguments = {"allow_watch_bookmarks": True, "timeout_seconds": _WATCH_S}
        timeouts = {"_request_timeout": (CONNECT_S, READ_S)}
        for event in self._watch.stream(endpoint, resource_version=version, **arguments, **timeouts, **self._query):
            if self._stopped.is_set():
                return
            self._note_heard()
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

    def _note_heard(self) -> None:
        """The server sent something. If it was silent for longer than a silent watch lives, it was frozen."""
        now = time.monotonic()
        if now - self._heard_at > READ_S + CONNECT_S:
            self.outages += 1
        self._heard_at = now

    def _note(self, error: Exception) -> None:
        text = _error_text(error)
        if not isinstance(error, ApiException):
            self._outage.note_failure(self.name, text)
        elif text != self.problem:
            log.warning("The %s can't be watched: %s", self.name, text)
        self.problem = text
        self.status = error.status if isinstance(error, ApiException) else None  # set last: a waiting reader reads both

    def _clear(self) -> None:
        """A complete list was read."""
        self._outage.note_answer(self.name)
        if self.status is not None:
            log.info("The %s are watched again.", self.name)
        self.outages += self.problem is not None
        self.problem = self.status = None
        self._heard_at = time.monotonic()


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
