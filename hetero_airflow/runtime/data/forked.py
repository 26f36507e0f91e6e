"""The cache of a forked process that can't use its store itself: a process of its own reads for it.

obstore waits for ever in a fork of a process that has used it, as the workers of a DataLoader are by default. So such a
worker starts a Python of its own, which ends with it. Both talk in lines of JSON: a call, and the paths or the error.
What is read is kept until the worker ends.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hetero_airflow import errors
from hetero_airflow.contract.data_settings import DataSettings
from hetero_airflow.runtime.data.cache import Cache, Published, Revalidate
from hetero_airflow.settings import DATA_VARIABLE

T = TypeVar("T")

_CLOUD_CLIENT = "hetero_airflow.checkpoints.cloud_client"


def is_needed() -> bool:
    """Whether this process was forked from one that has used obstore."""
    client = sys.modules.get(_CLOUD_CLIENT)
    return client is not None and client.first_user() not in (None, os.getpid())


class ForkedCache:
    """As `Cache`; for any number of threads, whose calls come one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._reader: subprocess.Popen[str] | None = None

    def file(self, url: str, revalidate: Revalidate) -> Path:
        """See `Cache.file`."""
        return Path(self._ask("file", url, revalidate))

    def files(self, urls: Iterable[str], revalidate: Revalidate) -> list[Path]:
        """See `Cache.files`."""
        return [Path(path) for path in self._ask("files", urls if isinstance(urls, str) else list(urls), revalidate)]

    def tree(self, url: str) -> Path:
        """See `Cache.tree`."""
        return Path(self._ask("tree", url))

    def unpacked(self, url: str) -> Path:
        """See `Cache.unpacked`."""
        return Path(self._ask("unpacked", url))

    def urls(self, url: str) -> list[str]:
        """See `Cache.urls`."""
        return [str(found) for found in self._ask("urls", url)]

    def publish(self, source: Path, url: str) -> Published:
        """See `Cache.publish`."""
        published: Published = self._ask("publish", str(source.absolute()), url)
        return published

    def begin(self, read: Callable[[T], Path], item: T) -> Future[Path]:
        """See `Cache.begin`."""
        return self._threads.submit(read, item)

    def _ask(self, call: str, *arguments: Any) -> Any:
        with self._lock:
            try:
                answer = self._exchange(json.dumps([call, arguments]))
            except BaseException as error:  # of an answer that comes later, nobody would know to what
                self._end()
                if not isinstance(error, OSError | ValueError):
                    raise
                found = "a process that reads for this one, and has ended"
                raise errors.DataError("to read data", found=found, remedy="See the log, and try again") from error
        if "error" in answer:
            raise _rebuilt(answer)
        return answer["value"]

    def _exchange(self, line: str) -> dict[str, Any]:
        if self._reader is None:
            command = [sys.executable, "-c", f"from {__name__} import main; main()"]
            self._reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._reader.stdin
        assert self._reader.stdout
        self._reader.stdin.write(f"{line}\n")
        self._reader.stdin.flush()
        answer: dict[str, Any] = json.loads(self._reader.stdout.readline())
        return answer

    def _end(self) -> None:
        """The next call begins with another process."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.kill()
            with suppress(OSError):  # what was not written yet
                reader.communicate()


def _rebuilt(answer: dict[str, Any]) -> Exception:
    kind = getattr(errors, answer["error"], None)
    if isinstance(kind, type) and issubclass(kind, errors.HeteroError):
        return errors.rebuild_error(kind, answer["fields"], answer["text"])
    return OSError(answer["errno"], answer["text"], answer["filename"])


def _answer(cache: Cache, call: str, arguments: list[Any]) -> dict[str, Any]:
    try:
        if call == "publish":
            return {"value": cache.publish(Path(arguments[0]), arguments[1])}
        value = getattr(cache, call)(*arguments)
    except errors.HeteroError as error:
        return {"error": type(error).__name__, "fields": vars(error), "text": str(error)}
    except OSError as error:
        return {"error": "OSError", "errno": error.errno, "text": error.strerror, "filename": error.filename}
    return {"value": [str(path) for path in value] if isinstance(value, list) else str(value)}


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print from now on is no answer
    cache = Cache(DataSettings.of(os.environ.get(DATA_VARIABLE)))
    for line in sys.stdin:
        call, arguments = json.loads(line)
        print(json.dumps(_answer(cache, call, arguments)), file=answers, flush=True)
