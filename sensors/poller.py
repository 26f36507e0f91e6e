"""Reads many small objects of a store for many waiters in one event loop, at a limited rate.

A thousand triggers may wait in one triggerer process. If each polled the store with its own client, the store would get
far too many requests. So they share a poller:

* Waiters of the same object share its readings.
* An unchanged object is read after 1 s, 2 s, 4 s, ... 60 s, each with jitter; a changed one after 1 s.
* Requests start in the order in which they are due, at most eight a second for all objects, so an object that is read
  often can't starve the others. A round of a thousand objects takes 125 s.
* A fingerprint that needs no request (size and time of a local file) comes first, many in one batch. An object with an
  unchanged fingerprint costs no request.
* Nothing blocks the event loop: reads run in a few threads.
* A store that does not answer counts as unchanged. It is logged once, and again after a minute of answers.
"""

import asyncio
import contextvars
import heapq
import logging
import random
from collections.abc import AsyncGenerator, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, islice
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
FINGERPRINT_BATCH = 256
"""Number of fingerprints in one batch."""
ABSENT = "absent"
"""The fingerprint of a missing object."""

Target = TypeVar("Target", bound=Hashable, contravariant=True)
Content = TypeVar("Content", covariant=True)


class PolledSource(Protocol[Target, Content]):
    """What the poller reads. Both methods are called in threads and may block."""

    def fingerprint(self, target: Target) -> Hashable | None:
        """A value that shows a change without a request. Equal values mean no change.

        `ABSENT` if the object does not exist; None if only a request can show that.
        """

    def read(self, target: Target) -> Content | None:
        """The object now, by one request; None if there is none. Equal objects mean no change.

        :raises CheckpointStoreUnavailable: the store does not answer; the poller reads it again
        :raises InvalidCheckpoint: the content is invalid; the poller reads it again
        :raises Exception: any other exception ends the waiters
        """


@dataclass(slots=True, eq=False)
class _PolledObject(Generic[Content]):
    """One object, and the event for its waiters."""

    waiters: int = 0
    delay_s: float = MIN_DELAY_S
    due: float | None = None
    """Of the loop's clock: entries of the heap with another time are void. None while it is being looked at."""
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


class Poller(Generic[Target, Content]):
    """One for each event loop. Its tasks and threads live as long as somebody waits.

    :param rng: for the jitter
    """

    def __init__(self, source: PolledSource[Target, Content], rng: random.Random) -> None:
        self._source = source
        self._rng = rng
        self._watched: dict[Target, _PolledObject[Content]] = {}
        self._due: list[tuple[float, int, Target]] = []
        self._order = count()
        self._woken = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
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
            watched = self._watched[target] = _PolledObject()
            self._schedule(target, watched, 0.0)
        elif watched.due is not None and watched.delay_s > MIN_DELAY_S:
            watched.delay_s = MIN_DELAY_S
            self._schedule(target, watched, MIN_DELAY_S)
        watched.waiters += 1
        if self._work is None:
            # in its own context: its log lines belong to no single task
            self._work = asyncio.create_task(self._run(), context=contextvars.Context())
        return watched

    def _leave(self, target: Target, watched: _PolledObject[Content]) -> None:
        watched.waiters -= 1
        if watched.waiters == 0 and self._watched.get(target) is watched:
            del self._watched[target]
        if not self._watched and self._work is not None:
            self._work.cancel()
            self._work = None
            self._woken = asyncio.Event()  # the old one is bound to its loop
            self._due.clear()

    def _schedule(self, target: Target, watched: _PolledObject[Content], in_s: float) -> None:
        watched.due = asyncio.get_running_loop().time() + in_s
        heapq.heappush(self._due, (watched.due, next(self._order), target))
        self._woken.set()

    def _schedule_again(self, target: Target, watched: _PolledObject[Content], *, is_changed: bool) -> None:
        if self._watched.get(target) is watched:
            watched.delay_s = MIN_DELAY_S if is_changed else min(MAX_DELAY_S, watched.delay_s * 2)
            self._schedule(target, watched, watched.delay_s * self._rng.uniform(1 - JITTER, 1 + JITTER))

    async def _run(self) -> None:
        """Compares the fingerprints of due objects, and reads those that may have changed."""
        queue: asyncio.Queue[tuple[Target, _PolledObject[Content]]] = asyncio.Queue()
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="checkpoints")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read_queued(queue, threads))
                while True:
                    while due := list(islice(self._take_due(), FINGERPRINT_BATCH)):
                        await self._compare_fingerprints(due, queue, threads)
                    await self._until_due()
        except ExceptionGroup as error:
            self._work = None
            for watched in self._watched.values():
                watched.publish(error.exceptions[0])
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _take_due(self) -> Iterator[tuple[Target, _PolledObject[Content]]]:
        now = asyncio.get_running_loop().time()
        while self._due and self._due[0][0] <= now:
            due, _, target = heapq.heappop(self._due)
            watched = self._watched.get(target)
            if watched is not None and watched.due == due:
                watched.due = None
                yield target, watched

    async def _until_due(self) -> None:
        self._woken.clear()
        now = asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._due[0][0] - now if self._due else None):
                await self._woken.wait()

    async def _compare_fingerprints(
        self,
        due: Sequence[tuple[Target, _PolledObject[Content]]],
        queue: asyncio.Queue[tuple[Target, _PolledObject[Content]]],
        threads: ThreadPoolExecutor,
    ) -> None:
        targets = [target for target, _ in due]
        loop = asyncio.get_running_loop()
        fingerprints = await loop.run_in_executor(threads, lambda: list(map(self._source.fingerprint, targets)))
        for (target, watched), fingerprint in zip(due, fingerprints, strict=True):
            if fingerprint == ABSENT:
                self._accept(target, watched, None)
            elif fingerprint is not None and fingerprint == watched.fingerprint:
                self._schedule_again(target, watched, is_changed=False)
            else:
                queue.put_nowait((target, watched))
            watched.fingerprint = fingerprint

    async def _read_queued(
        self, queue: asyncio.Queue[tuple[Target, _PolledObject[Content]]], threads: ThreadPoolExecutor
    ) -> None:
        rate = AsyncLimiter(1, SPACING_S)  # holds the event loop, so it must not outlive this task
        free = asyncio.Semaphore(THREADS)

        async def read(target: Target, watched: _PolledObject[Content]) -> None:
            try:
                await self._read(target, watched, threads)
            finally:
                free.release()

        async with asyncio.TaskGroup() as group:
            while True:
                target, watched = await queue.get()
                if watched.waiters:
                    await free.acquire()
                    await rate.acquire()
                    group.create_task(read(target, watched))

    async def _read(self, target: Target, watched: _PolledObject[Content], threads: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        try:
            content = await loop.run_in_executor(threads, self._source.read, target)
        except CheckpointStoreUnavailable as error:
            watched.fingerprint = None
            self._note_failure(loop.time(), error)
            self._schedule_again(target, watched, is_changed=False)
        except InvalidCheckpoint as error:
            if str(error) != watched.problem:
                log.warning("%s The triggers wait for the next one.", error)
            watched.problem = str(error)
            self._schedule_again(target, watched, is_changed=False)
        except Exception as error:  # noqa: BLE001  for any error, nobody may wait forever
            watched.publish(error)
        else:
            self._note_answer(loop.time())
            self._accept(target, watched, content)

    def _accept(self, target: Target, watched: _PolledObject[Content], content: Content | None) -> None:
        is_changed = watched.number == 0 or content != watched.latest
        watched.problem = ""
        if is_changed:
            watched.publish(content)
        self._schedule_again(target, watched, is_changed=is_changed)

    def _note_failure(self, now: float, error: Exception) -> None:
        if self._failed_at is None:
            log.warning("%s Triggers keep waiting for checkpoints.", error)
        self._failed_at = now

    def _note_answer(self, now: float) -> None:
        if self._failed_at is not None and now - self._failed_at >= MAX_DELAY_S:
            log.info("The checkpoint store answers again: no failure for %g s.", MAX_DELAY_S)
            self._failed_at = None
