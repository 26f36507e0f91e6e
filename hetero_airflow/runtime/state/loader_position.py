"""The position in the data: a DataLoader that can be interrupted in an epoch and continued there."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from hetero_airflow.errors import RequestError
from hetero_airflow.runtime.state.restoring import Rng

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader


class LoaderPosition:
    """Iterates over a DataLoader, epoch after epoch without end, and knows its position.

    On resuming, it draws the same order of the epoch again, and skips the batches that were used without loading them.
    Random numbers that a data set draws inside of loader workers are not repeated. A loader with its own ``state_dict``
    (torchdata's StatefulDataLoader) needs no `LoaderPosition`: put it into the state directly.

    ::

        data = checkpoint.LoaderPosition(DataLoader(dataset, batch_size=32, shuffle=True))
        for step in checkpoint.steps(10_000, state={"model": model, "data": data, "rng": checkpoint.Rng()}):
            train(next(data))
    """

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._start: dict[str, Any] | None = None
        self.epoch = 0
        """Counted from 0."""
        self.batch = 0
        """The number of batches of the epoch that were returned."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches = self._open()
        for batch in self._batches:
            self.batch += 1
            return batch
        if not self.batch:
            raise RequestError(
                "loader", self._loader, found="a data loader without a batch", remedy="Check the length of the data set"
            )
        self.epoch, self.batch, self._start, self._batches = self.epoch + 1, 0, None, None
        return next(self)

    def state_dict(self) -> dict[str, Any]:
        """Epoch, batch, and the states of the generators at the start of the epoch."""
        return {"epoch": self.epoch, "batch": self.batch, "start": self._start if self.batch else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from this position at the next batch."""
        self.epoch, self.batch, self._start = state["epoch"], state["batch"], state["start"]
        self._batches = None

    def _open(self) -> Iterator[Any]:
        set_epoch = getattr(self._loader.sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self.epoch)
        if self._start is None:
            self._start = {
                "rng": Rng().state_dict(),
                "own": [generator.get_state() for generator in self._generators()],
            }
            return iter(self._loader)
        now = Rng().state_dict()
        Rng().load_state_dict(self._start["rng"])
        for generator, saved in zip(self._generators(), self._start["own"], strict=True):
            generator.set_state(saved)
        batches = _without_first(self._loader, self.batch)
        Rng().load_state_dict(now)
        return batches

    def _generators(self) -> "list[torch.Generator]":
        owners = (self._loader, self._loader.sampler)
        generators = (getattr(owner, "generator", None) for owner in owners)
        return list({id(generator): generator for generator in generators if generator is not None}.values())


def _without_first(loader: "DataLoader[Any]", count: int) -> Iterator[Any]:
    """The batches after the first `count`. The order of all batches is drawn before this returns.

    For a plain loader over an indexed data set, skipped batches are only drawn from the sampler and not loaded.
    """
    from torch.utils.data import DataLoader, IterableDataset

    if type(loader) is not DataLoader or loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        batches = iter(loader)
        for _ in islice(batches, count):
            pass
        return batches
    remaining_batches = _RemainingBatches(loader.batch_sampler, count)
    batches = iter(
        DataLoader(
            loader.dataset,
            batch_sampler=remaining_batches,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
        )
    )
    remaining_batches.begin()
    return batches


class _RemainingBatches:
    """A batch sampler without its first batches. It draws them at `begin`, or at the first batch if that is earlier."""

    def __init__(self, batches: Iterable[list[int]], count: int) -> None:
        self._all = batches
        self._count = count
        self._rest: Iterator[list[int]] | None = None

    def begin(self) -> Iterator[list[int]]:
        if self._rest is None:
            self._rest = iter(self._all)
            for _ in islice(self._rest, self._count):
                pass
        return self._rest

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        return next(self.begin())
