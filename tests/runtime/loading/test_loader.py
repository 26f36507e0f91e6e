"""A loader goes on after any batch as if nothing had interrupted it, and loads beside the steps."""

import logging
import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler, get_worker_info

from hetero_airflow.errors import InvalidCheckpoint, RequestError
from hetero_airflow.model.run import TimeShares
from hetero_airflow.runtime import checkpoint
from hetero_airflow.runtime.loading.device_copy import DeviceCopy
from hetero_airflow.runtime.loading.loader import Loader
from hetero_airflow.runtime.state.files import read_state, write_state
from hetero_airflow.runtime.state.restoring import Rng
from hetero_airflow.runtime.state.tree import stage
from hetero_airflow.runtime.step_times import StepTimes
from tests.effort import effort


def drawn() -> tuple[float, ...]:
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()


class Plain(Dataset):
    """Ten numbers; it counts how often one was loaded."""

    loaded = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        self.loaded += 1
        return index


class Noisy(Plain):
    """Each number with noise of its own."""

    def __getitem__(self, index: int) -> tuple[float, ...]:
        return super().__getitem__(index), *drawn()


class InGroups(Noisy):
    """Loads the items of a batch together, as Hugging Face's data sets do."""

    def __getitems__(self, indexes: list[int]) -> list[tuple[float, ...]]:
        return [self[index] for index in indexes]


class Stream(IterableDataset):
    """Ten numbers, of which each worker has a part."""

    def __iter__(self) -> Iterator[tuple[float, ...]]:
        worker = get_worker_info()
        numbers = range(10) if worker is None else range(worker.id, 10, worker.num_workers)
        return ((number, *drawn()) for number in numbers)


class Endless(Sampler):
    """Draws on and on, and knows no length."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield random.randrange(10)


class Lists:
    """Not of torch."""

    def __iter__(self) -> Iterator[list[float]]:
        return ([number, *drawn()] for number in range(5))


class OwnLoader(DataLoader):
    """Iterates in its own way."""

    def __iter__(self) -> Iterator[object]:
        return ([batch, *drawn()] for batch in super().__iter__())


LOADERS: dict[str, Callable[[], object]] = {
    "shuffled": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True),
    "without random items": lambda: DataLoader(Plain(), batch_size=3, shuffle=True),
    "with a generator": lambda: DataLoader(Noisy(), 3, shuffle=True, generator=torch.Generator().manual_seed(5)),
    "one by one": lambda: DataLoader(Noisy(), batch_size=None, shuffle=True),
    "in groups": lambda: DataLoader(InGroups(), batch_size=3, shuffle=True),
    "a data set": Noisy,
    "of a rank": lambda: DataLoader(Noisy(), 2, sampler=DistributedSampler(Noisy(), num_replicas=2, rank=1, seed=4)),
    "endless": lambda: DataLoader(Noisy(), batch_size=3, sampler=Endless()),
    "endless, without random items": lambda: DataLoader(Plain(), batch_size=3, sampler=Endless()),
    "iterable": lambda: DataLoader(Stream(), batch_size=3),
    "iterable, one by one": lambda: DataLoader(Stream(), batch_size=None),
    "lists": Lists,
    "its own way": lambda: OwnLoader(Noisy(), batch_size=3, shuffle=True),
}
WORKERS: dict[str, Callable[[], object]] = {
    "shuffled": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=2),
    "kept workers": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=2, persistent_workers=True),
    "with a generator": lambda: DataLoader(
        Noisy(), 3, shuffle=True, num_workers=1, persistent_workers=True, generator=torch.Generator().manual_seed(5)
    ),
    "one by one": lambda: DataLoader(Noisy(), batch_size=None, shuffle=True, num_workers=2),
    "of a rank": lambda: DataLoader(
        Noisy(), 2, sampler=DistributedSampler(Noisy(), num_replicas=2, rank=1, seed=4), num_workers=2
    ),
    "endless": lambda: DataLoader(Noisy(), batch_size=3, sampler=Endless(), num_workers=2),
    "iterable": lambda: DataLoader(Stream(), batch_size=3, num_workers=2),
    "iterable, kept workers": lambda: DataLoader(Stream(), batch_size=3, num_workers=2, persistent_workers=True),
}


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def texts(loader: Loader, count: int) -> list[str]:
    return [repr(next(loader)) for _ in range(count)]


def made(make: Callable[[], object], prefetch: int = 2) -> Loader:
    return checkpoint.loader(make(), prefetch)


def copied(make: Callable[[], object]) -> Loader:
    """A loader that copies to a device which is the CPU, so a thread takes the batches of workers, too."""
    loader = made(make)
    loader._copy = DeviceCopy(torch.device("cpu"))
    return loader


def is_same_after(make: Callable[[], object], done: int, folder, prefetch: int = 2) -> None:
    """Twelve batches in one run are those of two runs, of which the first one does some and saves."""
    seed(1)
    whole = made(make)
    expected = texts(whole, 12)
    seed(1)
    first = made(make, prefetch)
    before = texts(first, done)
    write_state(stage({"data": first}), folder)
    seed(2)
    resumed = made(make)
    resumed.load_state_dict(read_state(folder)["data"])
    assert before + texts(resumed, 12 - done) == expected
    assert (resumed.epoch, resumed.batch) == (whole.epoch, whole.batch)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("done", effort([0, 4, 9], [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]))
def test_the_batches_after_a_restore_are_the_same(make, done: int, tmp_path) -> None:
    is_same_after(make, done, tmp_path)


@pytest.mark.parametrize("make", WORKERS.values(), ids=WORKERS)
@pytest.mark.parametrize("done", effort([5], [0, 3, 4, 9]))
def test_they_are_the_same_with_workers(make, done: int, tmp_path) -> None:
    is_same_after(make, done, tmp_path)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_they_do_not_depend_on_what_is_loaded_ahead(make, tmp_path) -> None:
    is_same_after(make, 5, tmp_path, prefetch=0)


@pytest.mark.parametrize(
    "make", [*LOADERS.values(), *WORKERS.values()], ids=[*LOADERS, *(f"{n}, workers" for n in WORKERS)]
)
def test_they_are_the_same_on_a_device(make, tmp_path) -> None:
    seed(1)
    expected = texts(made(make), 12)
    seed(1)
    first = copied(make)
    before = texts(first, 5)
    write_state(stage({"data": first}), tmp_path)
    resumed = copied(make)
    resumed.load_state_dict(read_state(tmp_path)["data"])
    assert before + texts(resumed, 7) == expected


def test_they_do_not_depend_on_the_workers() -> None:
    seed(1)
    without = texts(made(LOADERS["shuffled"]), 9)
    seed(1)
    assert texts(made(WORKERS["shuffled"]), 9) == without


@pytest.mark.parametrize("make", [*LOADERS.values(), *WORKERS.values()])
def test_the_random_numbers_of_the_training_are_its_own(make) -> None:
    seed(1)
    expected = [drawn() for _ in range(6)]
    seed(1)
    loader = made(make)
    seen = []
    for _ in range(6):
        next(loader)
        seen.append(drawn())
    assert seen == expected


def test_batches_that_were_done_are_not_loaded_again() -> None:
    first = made(LOADERS["shuffled"])
    texts(first, 2)
    loader = DataLoader(Noisy(), batch_size=3, shuffle=True)
    resumed = checkpoint.loader(loader)
    resumed.load_state_dict(first.state_dict())
    next(resumed)
    assert loader.dataset.loaded == 3


def test_epochs_differ_and_so_do_the_seeds_of_two_runs() -> None:
    loader = made(LOADERS["of a rank"])
    epochs = [[next(loader)[0].tolist() for _ in range(3)] for _ in range(2)]
    assert loader.epoch == 1
    assert epochs[0] != epochs[1]
    seed(1)
    one = texts(made(LOADERS["shuffled"]), 4)
    seed(2)
    assert texts(made(LOADERS["shuffled"]), 4) != one


@pytest.mark.parametrize("make", [LOADERS["a data set"], LOADERS["lists"], WORKERS["shuffled"], WORKERS["iterable"]])
def test_each_epoch_has_random_numbers_of_its_own(make) -> None:
    seed(1)
    loader = made(make)
    of_epochs: dict[int, set[str]] = defaultdict(set)
    while loader.epoch < 2:
        numbers = re.findall(r"0\.\d{4,}", repr(next(loader)))
        of_epochs[loader.epoch].update(numbers)
    assert len(of_epochs[0]) > 10
    assert len(of_epochs[0] & of_epochs[1]) <= 1, "four digits may be the same by chance"


def test_ranks_draw_different_numbers_from_one_seed(monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    of_ranks = []
    for number in (0, 1):
        monkeypatch.setenv("RANK", str(number))
        seed(number)
        loader = made(lambda: DataLoader(Noisy(), batch_size=2))
        of_ranks.append((loader.state_dict()["seed"], texts(loader, 2)))
    assert of_ranks[0][0] == of_ranks[1][0]
    assert of_ranks[0][1] != of_ranks[1][1]


class Slow(Plain):
    """Says which thread loads, and lets the test wait for a load."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.is_loaded = threading.Semaphore(0)

    def __getitem__(self, index: int) -> int:
        self.threads.append(threading.current_thread().name)
        self.is_loaded.release()
        return index


def test_the_next_batches_are_loaded_while_a_step_computes() -> None:
    data = Slow()
    loader = checkpoint.loader(DataLoader(data, batch_size=1), prefetch=3)
    first = next(loader), next(loader)
    for _ in range(5):  # two that were returned, and three ahead, though nothing asks for them
        assert data.is_loaded.acquire(timeout=10)
    time.sleep(0.05)
    assert not data.is_loaded.acquire(blocking=False)
    assert data.threads == ["MainThread", *["loader_0"] * 4]
    assert [batch.item() for batch in first] == [0, 1]
    assert loader.state_dict()["batch"] == 2


def test_a_data_set_that_draws_is_loaded_by_the_thread_of_the_training(caplog) -> None:
    class Drawing(Slow):
        def __getitem__(self, index: int) -> int:
            drawn()
            return super().__getitem__(index)

    caplog.set_level(logging.INFO)
    data = Drawing()
    loader = checkpoint.loader(DataLoader(data, batch_size=1))
    texts(loader, 12)
    assert set(data.threads) == {"MainThread"}
    assert caplog.text.count("draws random numbers") == 1


def test_an_order_that_draws_on_and_on_is_drawn_by_the_thread_of_the_training() -> None:
    threads = set()

    class Recording(Endless):
        def __iter__(self) -> Iterator[int]:
            for index in super().__iter__():
                threads.add(threading.current_thread().name)
                yield index

    texts(checkpoint.loader(DataLoader(Plain(), batch_size=3, sampler=Recording())), 6)
    assert threads == {"MainThread"}


def test_the_time_that_the_training_waits_for_data_counts(monkeypatch) -> None:
    class Late:
        def __iter__(self) -> Iterator[int]:
            for number in range(3):
                now[0] += 3
                yield number

    now = [0.0]
    monkeypatch.setattr(checkpoint.session(), "times", StepTimes(lambda: now[0]))
    loader = checkpoint.loader(Late(), prefetch=0)
    assert checkpoint.session().times.shares() is None
    for _ in range(7):
        next(loader)
        now[0] += 6
    with checkpoint.session().times.saving():
        now[0] += 7
    assert checkpoint.session().times.shares() == TimeShares(data=0.3, compute=0.6, save=0.1)


def test_a_restore_leaves_no_load_behind() -> None:
    class Held(Plain):
        is_loading = threading.Event()
        may_end = threading.Event()

        def __getitem__(self, index: int) -> int:
            if index == 2:
                self.is_loading.set()
                assert self.may_end.wait(10)
                self.is_loading.clear()
            return index

    data = Held()
    loader = checkpoint.loader(DataLoader(data, batch_size=1), prefetch=1)
    texts(loader, 2)
    assert data.is_loading.wait(10)
    threading.Timer(0.1, data.may_end.set).start()
    loader.load_state_dict(loader.state_dict())
    assert not data.is_loading.is_set()
    assert next(loader).item() == 2


def test_an_error_of_the_data_set_arrives_in_the_training() -> None:
    class Broken(Plain):
        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise OSError("the disk is gone")
            return index

    loader = checkpoint.loader(DataLoader(Broken(), batch_size=1))
    texts(loader, 3)
    with pytest.raises(OSError, match="the disk is gone"):
        next(loader)


def test_workers_see_the_data_set_itself() -> None:
    def opened(worker: int) -> None:
        get_worker_info().dataset.loaded = 100 * worker

    class Counting(Plain):
        def __getitem__(self, index: int) -> int:
            super().__getitem__(index)
            return self.loaded

    loader = checkpoint.loader(DataLoader(Counting(), batch_size=1, num_workers=2, worker_init_fn=opened))
    assert [next(loader).item() for _ in range(4)] == [1, 101, 2, 102]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (DataLoader([], batch_size=2), "without a batch"),
        (iter([1]), "can't begin again"),
        (3, "no batches"),
        ("s3://b/data", "no batches"),
    ],
)
def test_what_is_no_loader_is_refused(source, found) -> None:
    with pytest.raises(RequestError, match=found):
        next(checkpoint.loader(source))


@pytest.mark.parametrize("prefetch", [-1, 1.5, True, "2", 10**9])
def test_a_wrong_number_of_batches_ahead_is_refused(prefetch) -> None:
    with pytest.raises(RequestError, match="prefetch"):
        checkpoint.loader(Plain(), prefetch)


def test_another_number_of_workers_of_an_iterable_data_set_is_refused() -> None:
    loader = made(WORKERS["iterable"])
    texts(loader, 1)
    with pytest.raises(InvalidCheckpoint, match="num_workers=2"):
        made(LOADERS["iterable"]).load_state_dict(loader.state_dict())


def test_the_generators_of_the_process_are_restored_after_an_error() -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> tuple[float, ...]:
            super().__getitem__(index)
            raise OSError("gone")

    before = repr(Rng().state_dict())
    with pytest.raises(OSError, match="gone"):
        next(checkpoint.loader(Broken()))
    assert repr(Rng().state_dict()) == before
