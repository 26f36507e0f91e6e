import asyncio
import logging
import random
import threading
from bisect import bisect_right
from collections import Counter
from contextlib import aclosing
from itertools import pairwise

import pytest

from hetero_airflow.errors import CheckpointStoreUnavailable, InvalidCheckpoint, SettingsError
from hetero_airflow.sensors.poller import ABSENT, JITTER, MAX_DELAY_S, MIN_DELAY_S, Poller


class Store:
    """Objects in memory, and when each was asked for."""

    def __init__(self, **objects):
        self.objects = objects
        self.requests = []
        self.error = None
        self.is_local = False
        self.loop = asyncio.get_running_loop()

    def fingerprint(self, target):
        assert threading.current_thread() is not threading.main_thread()
        return self.objects.get(target, ABSENT) if self.is_local else None

    def read(self, target):
        assert threading.current_thread() is not threading.main_thread()
        self.requests.append((self.loop.time(), target))
        if self.error is not None:
            raise self.error
        return self.objects.get(target)

    def times(self, target="a"):
        return [at for at, requested in self.requests if requested == target]


class Waiter:
    """Records the readings that it gets, with their times; ends after a given number."""

    def __init__(self, poller, target="a", ends_after=None):
        self.readings = []
        self.task = asyncio.create_task(self._wait(poller, target, ends_after))

    async def _wait(self, poller, target, ends_after):
        async with aclosing(poller.readings(target)) as readings:
            async for content in readings:
                self.readings.append((content, asyncio.get_running_loop().time()))
                if len(self.readings) == ends_after:
                    return

    @property
    def contents(self):
        return [content for content, _ in self.readings]


def polling(**objects):
    store = Store(**objects)
    return store, Poller(store, random.Random(1))


UNAVAILABLE = CheckpointStoreUnavailable("a", found="503", remedy="Wait")


def test_waiters_of_one_object_share_its_readings(run):
    async def scene():
        store, poller = polling(a=1)
        waiters = [Waiter(poller) for _ in range(100)]
        await asyncio.sleep(10)
        store.objects["a"] = 2
        await asyncio.sleep(70)
        return store.requests, [waiter.contents for waiter in waiters]

    requests, contents = run(scene())
    assert contents == [[1, 2]] * 100
    assert len(requests) < 12


def test_looks_get_rarer_while_nothing_changes_and_frequent_again_after_a_change(run):
    async def scene():
        store, poller = polling(a=1)
        Waiter(poller)
        await asyncio.sleep(600)
        changed_at = store.loop.time()
        store.objects["a"] = 2
        await asyncio.sleep(600)
        return store.times(), changed_at

    times, changed_at = run(scene())
    seen = bisect_right(times, changed_at)
    for part in (times[:seen], times[seen:]):
        waits = [later - sooner for sooner, later in pairwise(part)]
        wanted = [min(MAX_DELAY_S, MIN_DELAY_S * 2**number) for number in range(len(waits))]
        assert len(waits) > 8
        assert all(abs(wait / want - 1) <= JITTER + 0.01 for wait, want in zip(waits, wanted, strict=True))
        assert len({round(wait / want, 6) for wait, want in zip(waits, wanted, strict=True)}) > 5  # the jitter
    assert times[seen] - changed_at <= MAX_DELAY_S * (1 + JITTER)


def test_a_thousand_objects_are_at_most_ten_requests_a_second_and_each_gets_its_turn(run):
    async def scene():
        store, poller = polling()
        for number in range(1000):
            Waiter(poller, f"key {number}")
        for second in range(350):  # ten of them change all the time
            for number in range(10):
                store.objects[f"key {number}"] = second
            await asyncio.sleep(1)
        return store.requests

    requests = run(scene())
    times = [at for at, _ in requests]
    assert max(bisect_right(times, at + 1) - number for number, at in enumerate(times)) <= 10
    turns = Counter(target for _, target in requests)
    assert len(turns) == 1000
    assert max(turns.values()) <= 2 * min(turns.values())
    assert len(requests) > 2700


def test_a_change_is_seen_within_a_second_after_another(run):
    async def scene():
        store, poller = polling(a=1)
        waiter = Waiter(poller)
        for content in range(2, 6):
            await asyncio.sleep(2)
            store.objects["a"] = content
        await asyncio.sleep(2)
        return waiter.readings

    readings = run(scene())
    assert [content for content, _ in readings] == [1, 2, 3, 4, 5]
    assert all(at - 2 * number <= MIN_DELAY_S * (1 + JITTER) for number, (_, at) in enumerate(readings))


def test_an_unchanged_local_fingerprint_costs_no_request(run):
    async def scene():
        store, poller = polling(a=1)
        store.is_local = True
        there, missing = Waiter(poller, "a"), Waiter(poller, "b")
        await asyncio.sleep(300)
        requests = list(store.requests)
        store.objects |= {"a": 2, "b": 1}
        await asyncio.sleep(100)
        return [target for _, target in requests], there.contents, missing.contents, len(store.requests)

    assert run(scene()) == (["a"], [1, 2], [None, 1], 3)


def test_a_later_waiter_gets_the_last_reading_at_once_and_polling_restarts(run):
    async def scene():
        store, poller = polling(a=1)
        Waiter(poller)
        await asyncio.sleep(500)
        came_at, before = store.loop.time(), len(store.requests)
        late = Waiter(poller)
        await asyncio.sleep(0)
        read_without_request = late.contents, len(store.requests) - before
        await asyncio.sleep(10)
        return read_without_request, store.times()[before] - came_at

    contents, wait_s = run(scene())
    assert contents == ([1], 0)
    assert wait_s == pytest.approx(MIN_DELAY_S)


def test_without_waiters_nothing_is_polled(run):
    async def scene():
        store, poller = polling(a=1)
        ended, cancelled = Waiter(poller, ends_after=1), Waiter(poller)
        await asyncio.sleep(1)
        cancelled.task.cancel()
        await asyncio.sleep(0)
        before = len(store.requests)
        await asyncio.sleep(600)
        assert ended.task.done()
        assert cancelled.task.cancelled()
        tasks_left = asyncio.all_tasks() - {asyncio.current_task()}
        again = Waiter(poller, ends_after=1)
        await again.task
        return before, len(store.requests) - before, tasks_left, again.contents

    before, later, tasks_left, again = run(scene())
    assert (later, tasks_left, again) == (1, set(), [1])
    assert before >= 1


def test_a_long_outage_of_a_store_ends_no_waiter_and_is_logged_once(run, caplog):
    async def scene():
        store, poller = polling(a=1, b=1)
        waiters = [Waiter(poller, target) for target in ("a", "b")]
        await asyncio.sleep(5)
        store.error = UNAVAILABLE
        await asyncio.sleep(7200)
        during = [waiter.contents for waiter in waiters]
        store.error = None
        store.objects |= {"a": 2, "b": 2}
        await asyncio.sleep(300)
        return during, [waiter.contents for waiter in waiters], len(store.requests)

    caplog.set_level(logging.INFO, logger="hetero_airflow.sensors.poller")
    during, after, requests = run(scene())
    assert during == [[1], [1]]
    assert after == [[1, 2], [1, 2]]
    assert requests < 2 * 7500 / (MAX_DELAY_S * (1 - JITTER)) + 20
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_store_that_fails_now_and_then_does_not_flood_the_log(run, caplog):
    async def scene():
        store, poller = polling(a=1, b=1)
        for target in ("a", "b"):
            Waiter(poller, target)
        for number in range(300):
            store.error = UNAVAILABLE if number % 2 else None
            store.objects |= {"a": number, "b": number}
            await asyncio.sleep(1)

    run(scene())
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_unreadable_object_is_logged_once_and_read_again(run, caplog):
    async def scene():
        store, poller = polling(a=1)
        waiter = Waiter(poller)
        await asyncio.sleep(5)
        store.error = InvalidCheckpoint("a", found="garbage", remedy="Save again")
        await asyncio.sleep(600)
        store.error, store.objects["a"] = None, 2
        await asyncio.sleep(100)
        return waiter.contents

    assert run(scene()) == [1, 2]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(
    "error", [SettingsError("a", found="nothing", remedy="Correct it"), ZeroDivisionError("a fault of ours")]
)
def test_an_object_that_can_never_be_read_ends_the_waiters(run, error):
    async def scene():
        store, poller = polling(a=1)
        store.error = error
        waiters = [Waiter(poller) for _ in range(3)]
        ends = await asyncio.gather(*(waiter.task for waiter in waiters), return_exceptions=True)
        store.error = None
        again = Waiter(poller, ends_after=1)
        await again.task
        return ends, again.contents

    ends, again = run(scene())
    assert [type(end) for end in ends] == [type(error)] * 3
    assert again == [1]


def test_a_fingerprint_that_fails_ends_the_waiters_too(run):
    async def scene():
        store, poller = polling(a=1)
        store.fingerprint = lambda target: 1 // 0
        waiter = Waiter(poller)
        with pytest.raises(ZeroDivisionError):
            await waiter.task
        del store.fingerprint
        again = Waiter(poller, ends_after=1)
        await again.task
        return again.contents

    assert run(scene()) == [1]


def test_an_object_that_fails_ends_no_waiter_of_another(run):
    async def scene():
        store, poller = polling(good=1)
        read = store.read
        store.read = lambda target: read(target) if target == "good" else {}[target]
        bad, good = Waiter(poller, "bad"), Waiter(poller, "good")
        await asyncio.sleep(10)
        store.objects["good"] = 2
        await asyncio.sleep(10)
        return type(bad.task.exception()), good.task.done(), good.contents

    assert run(scene()) == (KeyError, False, [1, 2])
