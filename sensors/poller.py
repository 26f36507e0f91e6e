"""Reads many small objects of a store for many waiters in one event loop, at a limited rate.

A thousand triggers may wait in one triggerer process. If each polled the store with its own client, the store would get
far too many requests. So they share a poller:

* Waiters of the same object share its readings.
* An unchanged object is read after 1 s, 2 s, 4 s, ... 60 s, each with jitter; a changed one after 1 s.
* Requests start in the order in which they are due, at most eight a second for all objects, so an object that is read
  often can't starve the others. A round of a thousand objects takes 125 s.
* A fingerprint that needs no request (size and time of a local file) comes first. An object whose fingerprint has not
  changed costs no request.
* Nothing blocks the event loop: reads run in a few threads.
* A store that does not answer counts as unchanged. It is logged once, and again after a minute of answers.
"""

import asyncio
import contextvars
import logging
import random
from collections.abc import AsyncGenerator, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from aiolimiter import AsyncLimiter

from hetero_airflow.errors import CheckpointStoreUnavailable, InvalidCheckpoint

log = logging.getLogger(__name__)

MIN_DELAY_S = 1.0
MAX_DELAY_S = 60.0
JITTER = 0.2
"""A wait varies by up to this fraction, so that objects that started together spread out."""
SPACING_S = 0.125
"""Seconds between the starts of two requests. At nine a second, a server on a busy host (load 10 on two cores) got 11
within one second; eight leave room for delayed ones, below the limit of ten."""
THREADS = 8
ABSENT = "absent"
"""The fingerprint of a missing object."""

Target = TypeVar("Target", bound=Hashable, contravariant=True)
Content = TypeVar("Content", covariant=True)


class PolledSource(Protocol[Target, Content]):
    """What the poller reads. Both methods are called in threads and may block."""

    def fingerprint(self, target: Target, /) -> Hashable | None:
        """A value that shows a change without a request. Equal values mean no change.

        `ABSENT` if the object does not exist; None if only a request can show that.
        """

    def read(self, target: Target, /) -> Content | None:
        """The object now, by one request; None if there is none. Equal objects mean no change.

        :raises CheckpointStoreUnavailable: the store does not answer; the poller reads it again
        :raises InvalidCheckpoint: the content is invalid; the poller reads it again
        :raises Exception: any other exception ends the waiters
        """


@dataclass(slots=True, eq=False)
class _PolledObject(Generic[Content]):
    """One object, and the event for its waiters."""

    waiters: int = 0
    task: asyncio.Task[None] | None = None
    delay_s: float = MIN_DELAY_S
    pause: asyncio.Timeout | None = None
    """The wait for the next look; None while it is being looked at."""
    fingerprint: Hashable | None = None
    latest: Content | Exception | None = None
    problem: str = ""
    """What was wrong with it when it was read last."""
    number: int = 0
    """Number of changes."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, latest: Content | Exception | None) -> None:
        self.latest = latest
        self.number += 1
        self.changed.set()
        self.changed = asyncio.Event()


class _Requests:
    """What all requests share while somebody waits. It holds the event loop, so it must not outlive the waiters."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="checkpoints")
        self.free = asyncio.Semaphore(THREADS)
        self.rate = AsyncLimiter(1, SPACING_S)


class Poller(Generic[Target, Content]):
    """One for each event loop. Each object has a task; tasks and threads live as long as somebody waits.

    :param rng: for the jitter
    """

    def __init__(self, source: PolledSource[Target, Content], rng: random.Random) -> None:
        self._source = source
        self._rng = rng
        self._watched: dict[Target, _PolledObject[Content]] = {}
        self._requests: _Requests | None = None
        self._failed_at: float | None = None
        """Time of the last failure of the store; None once it has answered for a while."""

    async def readings(self, target: Target) -> AsyncGenerator[Content | None, None]:
        """Yields the object now, then after each change that was seen; None if it does not exist.

        Close it at the end (`contextlib.aclosing`): the poller reads the object until then.

        :raises Exception: an exception of the source, except the two that the poller retries
        """
        watched = self._join(target)
        try:
            seen = 0
            while True:
                while watched.number == seen:
                    await watched.changed.wait()
                seen = watched.number
                if isinstance(watched.latest, Exception):
                    raise watched.latest
                yield watched.latest
        finally:
            self._leave(target, watched)

    def _join(self, target: Target) -> _PolledObject[Content]:
        watched = self._watched.get(target)
        if watched is None:
            self._requests = self._requests or _Requests()
            watched = self._watched[target] = _PolledObject()
            # in its own context: its log lines belong to no single task
            polling = self._poll(target, watched, self._requests)
            watched.task = asyncio.create_task(polling, context=contextvars.Context())
        elif watched.pause is not None and not watched.pause.expired() and watched.delay_s > MIN_DELAY_S:
            watched.delay_s = MIN_DELAY_S
            watched.pause.reschedule(asyncio.get_running_loop().time() + MIN_DELAY_S)
        watched.waiters += 1
        return watched

    def _leave(self, target: Target, watched: _PolledObject[Content]) -> None:
        watched.waiters -= 1
        if watched.waiters == 0 and watched.task is not None:
            watched.task.cancel()
            del self._watched[target]
        if not self._watched and self._requests is not None:
            self._requests.threads.shutdown(wait=False, cancel_futures=True)
            self._requests = None

    async def _poll(self, target: Target, watched: _PolledObject[Content], requests: _Requests) -> None:
        """Look at an object again and again. Any error but the two that are retried ends its waiters."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                is_changed = await self._look(target, watched, requests)
                watched.delay_s = MIN_DELAY_S if is_changed else min(MAX_DELAY_S, watched.delay_s * 2)
                with suppress(TimeoutError):
                    wait_s = watched.delay_s * self._rng.uniform(1 - JITTER, 1 + JITTER)
                    async with asyncio.timeout(wait_s) as watched.pause:
                        await loop.create_future()
                watched.pause = None
        except Exception as error:  # noqa: BLE001  for any error, nobody may wait forever
            watched.publish(error)

    async def _look(self, target: Target, watched: _PolledObject[Content], requests: _Requests) -> bool:
        """Compare the fingerprint, and read the object if it may have changed; whether it has."""
        loop = asyncio.get_running_loop()
        fingerprint = await loop.run_in_executor(requests.threads, self._source.fingerprint, target)
        before, watched.fingerprint = watched.fingerprint, fingerprint
        if fingerprint == ABSENT:
            return self._accept(watched, None)
        if fingerprint is not None and fingerprint == before:
            return False
        async with requests.free:
            await requests.rate.acquire()
            try:
                content = await loop.run_in_executor(requests.threads, self._source.read, target)
            except CheckpointStoreUnavailable as error:
                watched.fingerprint = None
                self._note_failure(loop.time(), error)
                return False
            except InvalidCheckpoint as error:
                if str(error) != watched.problem:
                    log.warning("%s The triggers wait for the next one.", error)
                watched.problem = str(error)
                return False
        self._note_answer(loop.time())
        return self._accept(watched, content)

    def _accept(self, watched: _PolledObject[Content], content: Content | None) -> bool:
        is_changed = watched.number == 0 or content != watched.latest
        watched.problem = ""
        if is_changed:
            watched.publish(content)
        return is_changed

    def _note_failure(self, now: float, error: Exception) -> None:
        if self._failed_at is None:
            log.warning("%s Triggers keep waiting for checkpoints.", error)
        self._failed_at = now

    def _note_answer(self, now: float) -> None:
        if self._failed_at is not None and now - self._failed_at >= MAX_DELAY_S:
            log.info("The checkpoint store answers again: no failure for %g s.", MAX_DELAY_S)
            self._failed_at = None
