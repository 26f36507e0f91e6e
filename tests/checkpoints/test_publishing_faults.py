"""A publisher that dies at any call, and two publishers that take turns in any order."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_airflow.checkpoints.checkpoint_store import CheckpointStore
from hetero_airflow.checkpoints.filesystem import FilesystemStore
from hetero_airflow.checkpoints.index import CheckpointEntry
from hetero_airflow.checkpoints.loading import load_checkpoint, load_latest, read_index, read_newest_checkpoint
from hetero_airflow.checkpoints.place import CheckpointPlace
from hetero_airflow.checkpoints.publishing import WriteClaim, claim_place, publish
from hetero_airflow.errors import FencedOut
from tests.checkpoints.conftest import NOW


class Killed(BaseException):
    """Like a SIGKILL: nothing catches it."""


class Watched:
    """A store with a hook before and after each call."""

    def __init__(self, store: CheckpointStore, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._store, self._before, self._after = store, before, after

    def __getattr__(self, name: str):
        method = getattr(self._store, name)

        def call(*args, **kwargs):
            self._before()
            answer = method(*args, **kwargs)
            if name == "sweep":
                answer = iter(list(answer))
            self._after()
            return answer

        return call


def save(store, holder: WriteClaim, step: int) -> CheckpointEntry:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("a", "b"):
            (folder / file).write_text(f"{file} of {step} with {holder.token}")
        return publish(store, holder, folder, step=step, metrics={}, now=NOW + timedelta(seconds=step))


def folders(store: CheckpointStore, place: CheckpointPlace) -> set[str]:
    folders: set[str] = set()
    list(store.sweep(place.path, lambda name, age_s: bool(folders.add(name))))
    return folders


def kill_at(number: int) -> Callable[[], None]:
    calls = iter(range(1, 1000))

    def check() -> None:
        if next(calls) == number:
            raise Killed

    return check


def nothing() -> None:
    pass


def test_a_kill_at_any_call_of_a_save_keeps_earlier_checkpoints(store, new_place, tmp_path) -> None:
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    holder = claim_place(store, new_place(token=1, path="dag/count/run/-1"))
    save(Watched(store, count, nothing), holder, 1)
    assert calls > 6
    for number in range(1, calls + 1):
        for when in ("before", "after"):
            check = kill_at(number)
            dying = Watched(store, *((check, nothing) if when == "before" else (nothing, check)))
            place = new_place(token=5, path=f"{when}/{number}/run/-1")
            holder = claim_place(store, place)
            first = save(store, holder, 1)
            with pytest.raises(Killed):
                save(dying, holder, 2)
            into = tmp_path / f"{when}{number}"
            loaded = load_latest(store, place, into)
            assert loaded == read_index(store, place.path).entries[-1]
            assert loaded == first or loaded.step == 2
            assert (into / "a").read_text() == f"a of {loaded.step} with 5"
            # The next run continues from there, publishes its own, and removes what is incomplete.
            retry = claim_place(store, new_place(token=6, path=place.path))
            assert retry.index.entries[-1] == loaded
            last = save(store, retry, 3)
            assert folders(store, place) == {entry.key for entry in read_index(store, place.path).entries}
            assert read_newest_checkpoint(store, when, str(number)).entry == last


def test_a_kill_at_any_call_of_a_claim_does_no_harm(store, new_place, tmp_path) -> None:
    for number in range(1, 4):
        for when in ("before", "after"):
            check = kill_at(number)
            dying = Watched(store, *((check, nothing) if when == "before" else (nothing, check)))
            place = new_place(token=5, path=f"{when}/{number}/run/-1")
            entry = save(store, claim_place(store, place), 1)
            with pytest.raises(Killed):
                claim_place(dying, new_place(token=6, path=place.path))
            assert load_latest(store, place, tmp_path / f"{when}{number}") == entry
            save(store, claim_place(store, new_place(token=7, path=place.path)), 2)


class Actor(threading.Thread):
    """A run that makes one call to the store at each step."""

    def __init__(self, store: CheckpointStore, work: Callable[[CheckpointStore], None]) -> None:
        super().__init__(daemon=True)
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._store, self._work = store, work
        self.error: BaseException | None = None
        self.is_over = False
        self.start()
        self._done.acquire()

    def run(self) -> None:
        try:
            self._work(Watched(self._store, self._pause, nothing))
        except BaseException as error:  # noqa: BLE001  the test looks at it
            self.error = error
        self.is_over = True
        self._done.release()

    def _pause(self) -> None:
        self._done.release()
        self._go.acquire()

    def step(self) -> bool:
        """Make the next call; returns whether there was one."""
        if self.is_over:
            return False
        self._go.release()
        self._done.acquire()
        return True


def check_whole(store: CheckpointStore, place: CheckpointPlace, entry: CheckpointEntry) -> None:
    with tempfile.TemporaryDirectory() as name:
        load_checkpoint(store, place, entry, Path(name) / "into")
        assert (Path(name) / "into" / "b").read_text() == f"b of {entry.step} with {entry.token}"


def is_sorted(tokens: list[int]) -> bool:
    return tokens == sorted(tokens)


@settings(max_examples=40, deadline=None)
@given(
    turns=st.lists(st.booleans(), max_size=60),
    tokens=st.sampled_from([(1, 2), (7, 9), (None, None), (3, 3)]),
    keep_last=st.integers(1, 2),
)
def test_two_runs_in_any_order_never_mix(turns: list[bool], tokens, keep_last: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        store = FilesystemStore(Path(name) / "store")
        place = CheckpointPlace(url="file:///unused", path="dag/task/run/-1", keep_last=keep_last)
        owners: list[int] = []

        def work(token: int | None) -> Callable[[CheckpointStore], None]:
            def run(slow_store: CheckpointStore) -> None:
                holder = claim_place(slow_store, place.model_copy(update={"token": token}))
                owners.append(holder.token)
                for step in range(3):
                    save(slow_store, holder, step)

            return run

        actors = [Actor(store, work(token)) for token in tokens]
        seen: dict[str, int] = {}
        for turn in schedule(turns, actors):
            turn.step()
            index = read_index(store, place.path)
            if index is None:
                continue
            # No run publishes after a later run has begun, and every named checkpoint is whole.
            fresh = [entry for entry in index.entries if entry.key not in seen]
            assert all(entry.token == index.token for entry in fresh)
            seen |= {entry.key: entry.token for entry in fresh}
            assert is_sorted([entry.token for entry in index.entries])
            for entry in fresh:
                check_whole(store, place, entry)
        for actor in actors:
            actor.join(600)
            assert actor.error is None or isinstance(actor.error, FencedOut)
        for entry in read_index(store, place.path).entries:
            check_whole(store, place, entry)
        assert any(actor.error is None for actor in actors)
        assert None not in tokens or len(set(owners)) == len(owners)
        assert read_newest_checkpoint(store, "dag", "task").entry.token == read_index(store, place.path).token


def schedule(turns: list[bool], actors: list[Actor]) -> Iterator[Actor]:
    """In the drawn order, then one after the other until all are done."""
    yield from (actors[turn] for turn in turns)
    for actor in actors:
        while not actor.is_over:
            yield actor
