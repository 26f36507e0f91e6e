"""Generators and loaders go on where they were."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from hetero_airflow.errors import RequestError
from hetero_airflow.runtime.state.files import read_state, write_state
from hetero_airflow.runtime.state.loader_position import LoaderPosition
from hetero_airflow.runtime.state.restoring import Rng
from hetero_airflow.runtime.state.tree import stage


def drawn() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]


def test_the_generators_continue_after_a_restore_from_files(tmp_path) -> None:
    drawn()
    write_state(stage(Rng()), tmp_path)
    expected = [drawn(), drawn()]
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    Rng().load_state_dict(read_state(tmp_path))
    assert [drawn(), drawn()] == expected


def test_generators_of_missing_gpus_are_skipped() -> None:
    state = Rng().state_dict()
    absent = [torch.get_rng_state()] * (torch.cuda.device_count() + 1)
    Rng().load_state_dict({**state, "cuda": absent})
    assert Rng().state_dict()["torch"].equal(state["torch"])


class Noisy(Dataset):
    """Ten numbers, each with noise of its own; counts how often one was loaded."""

    loaded = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        self.loaded += 1
        return index, random.random(), torch.rand(()).item()


class Stream(IterableDataset):
    def __iter__(self):
        return (number + random.random() for number in range(10))


def shuffled() -> DataLoader:
    return DataLoader(Noisy(), batch_size=3, shuffle=True)


def with_generator() -> DataLoader:
    return DataLoader(Noisy(), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(5))


def one_by_one() -> DataLoader:
    return DataLoader(Noisy(), batch_size=None, shuffle=True)


def streamed() -> DataLoader:
    return DataLoader(Stream(), batch_size=3)


def of_a_rank() -> DataLoader:
    return DataLoader(Noisy(), batch_size=2, sampler=DistributedSampler(Noisy(), num_replicas=2, rank=1, seed=4))


def texts(position: LoaderPosition, count: int) -> list[str]:
    return [repr(next(position)) for _ in range(count)]


@pytest.mark.parametrize("make", [shuffled, with_generator, one_by_one, streamed, of_a_rank])
@pytest.mark.parametrize("done", [0, 1, 3, 4, 6, 9])
def test_the_batches_after_a_restore_are_the_same(make, done: int) -> None:
    torch.manual_seed(1)
    random.seed(1)
    position = LoaderPosition(make())
    texts(position, done)
    saved, rng = position.state_dict(), Rng().state_dict()
    expected = texts(position, 9)

    torch.manual_seed(2)
    random.seed(2)
    resumed = LoaderPosition(make())
    resumed.load_state_dict(saved)
    Rng().load_state_dict(rng)
    assert texts(resumed, 9) == expected
    assert (resumed.epoch, resumed.batch) == (position.epoch, position.batch)


def test_batches_that_were_done_are_not_loaded_again() -> None:
    position = LoaderPosition(shuffled())
    texts(position, 2)
    loader = shuffled()
    resumed = LoaderPosition(loader)
    resumed.load_state_dict(position.state_dict())
    next(resumed)
    assert loader.dataset.loaded == 3


def test_epochs_differ_and_a_rank_shuffles_each_of_them() -> None:
    position = LoaderPosition(of_a_rank())
    epochs = [[next(position)[0].tolist() for _ in range(3)] for _ in range(2)]
    assert position.epoch == 1
    assert epochs[0] != epochs[1]


def test_workers_get_the_same_order() -> None:
    def made() -> LoaderPosition:
        return LoaderPosition(DataLoader(range(12), batch_size=2, shuffle=True, num_workers=1))

    torch.manual_seed(1)
    position = made()
    texts(position, 2)
    saved = position.state_dict()
    expected = texts(position, 4)
    torch.manual_seed(2)
    resumed = made()
    resumed.load_state_dict(saved)
    assert texts(resumed, 4) == expected


def test_a_loader_without_a_batch_is_refused() -> None:
    with pytest.raises(RequestError, match="without a batch"):
        next(LoaderPosition(DataLoader([], batch_size=2)))
