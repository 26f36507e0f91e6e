"""The batches of an epoch, from any of its batches on, with the same random numbers each time."""

import copy
import logging
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice, repeat
from typing import TYPE_CHECKING, Any

from hetero_airflow.errors import RequestError
from hetero_airflow.runtime.loading.random_streams import RandomStream, derived_seed, seed_generators

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

logger = logging.getLogger(__name__)

END = object()
"""Stands for the end of an epoch."""


class Batches:
    """Batches that are loaded in this process, from an object that can be iterated again and again."""

    workers: int | None = None
    """The number of processes that decide which batches come; None if they come in an order of their own."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches
        self._draws: bool | None = None

    def is_apart(self, *, is_copied: bool) -> bool:
        """Whether a thread should load. It can if the data set draws no random numbers; the first batch shows it.

        :param is_copied: whether the thread copies the batches to a device, too; of workers, only for this
        """
        return self._draws is False

    def begin(self, epoch: int, start: list[Any] | None) -> list[Any]:
        """Begin an epoch; the states of the loader's own generators there, which are first set to `start` if given."""
        return []

    def open(self, skipped: int, seed: int) -> Iterator[Any]:
        """The batches of the epoch after the first ones; these are loaded again."""
        stream = RandomStream(seed)
        with stream:
            batches = iter(self._batches)
            for _ in islice(batches, skipped):
                pass
        return self._loaded_here(batches, repeat(stream))

    def _loaded_here(self, batches: Iterator[Any], streams: Iterable[RandomStream]) -> Iterator[Any]:
        """The batches; the random numbers of each one come from its stream."""
        for stream in streams:
            if self._draws is False:
                yield next(batches, END)
                continue
            with stream:
                batch = next(batches, END)
            if self._draws is None and batch is not END:
                self._draws = stream.was_used
                if self._draws:
                    logger.info(
                        "The data set draws random numbers, so its batches are loaded between the steps. A DataLoader "
                        "with num_workers=1 loads them beside the steps"
                    )
            yield batch


class StreamedBatches(Batches):
    """The batches of a DataLoader over an iterable data set. The batches that are skipped are loaded again."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        super().__init__(_changed(loader, persistent_workers=False))  # new workers begin each epoch alike
        self._loader = loader
        self.workers = loader.num_workers

    def is_apart(self, *, is_copied: bool) -> bool:
        """Whether a thread should load; workers load ahead by themselves."""
        return is_copied if self.workers else super().is_apart(is_copied=is_copied)

    def begin(self, epoch: int, start: list[Any] | None) -> list[Any]:
        """Begin an epoch."""
        _set_epoch(epoch, self._loader.dataset)
        return []

    def open(self, skipped: int, seed: int) -> Iterator[Any]:
        """The batches of the epoch after the first ones."""
        import torch

        self._batches = _changed(self._batches, generator=torch.Generator().manual_seed(seed))  # it seeds the workers
        if not self.workers:
            return super().open(skipped, seed)
        return islice(iter(self._batches), skipped, None)


class IndexedBatches(Batches):
    """The batches of a DataLoader over a data set with indexes. The batches that are skipped are not loaded."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        import torch

        super().__init__(())
        self._loader = loader
        self._order = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._rest = _Rest()
        self._is_drawn = False
        self._generator = torch.Generator()
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        self._changed = _changed(loader, generator=self._generator, **{name: self._rest})

    def is_apart(self, *, is_copied: bool) -> bool:
        """Whether a thread should load; workers load ahead by themselves."""
        is_apart = is_copied if self._loader.num_workers else super().is_apart(is_copied=is_copied)
        return self._is_drawn and is_apart

    def begin(self, epoch: int, start: list[Any] | None) -> list[Any]:
        """Begin an epoch; the states of the loader's own generators there."""
        loader = self._loader
        _set_epoch(epoch, loader.batch_sampler, loader.sampler, loader.dataset)
        owners = (loader.sampler, loader.batch_sampler)
        generators = [generator for owner in owners if (generator := getattr(owner, "generator", None)) is not None]
        for generator, state in zip(generators, start or [], strict=start is not None):
            generator.set_state(state)
        return [generator.get_state() for generator in generators]

    def open(self, skipped: int, seed: int) -> Iterator[Any]:
        """The batches of the epoch after the first ones. The order of a sized data set is drawn before this returns."""
        self._generator.manual_seed(seed)  # it seeds the workers when they start
        order, self._is_drawn = _drawn(self._order, RandomStream(seed))
        seeds = (derived_seed(seed, number) for number in count(skipped))
        rest = islice(order, skipped, None)
        if self._loader.num_workers:
            self._rest.items = map(_SeededIndexes, rest, seeds)
            return iter(self._changed)
        self._rest.items = rest
        return self._loaded_here(iter(self._changed), map(RandomStream, seeds))


class _Rest:
    """The indexes of the batches to load; stands in for a loader's sampler."""

    items: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.items


class _SeededIndexes:
    """The indexes of a batch. Where a worker receives them, its generators are seeded, and the bare indexes arrive."""

    def __init__(self, indexes: Any, seed: int) -> None:
        self.indexes = indexes
        self.seed = seed

    def __reduce__(self) -> tuple[Any, ...]:
        return _seeded, (self.indexes, self.seed)


def _seeded(indexes: Any, seed: int) -> Any:
    seed_generators(seed)
    return indexes


def _drawn(order: Iterable[Any], stream: RandomStream) -> tuple[Iterator[Any], bool]:
    """The order of an epoch, drawn from the stream; and whether all of it is drawn already, as its length is known."""
    with stream:
        items = iter(order)
        length = _length(order)
        first = list(islice(items, length + 1))

    def rest() -> Iterator[Any]:
        while True:
            with stream:
                item = next(items, END)
            if item is END:
                return
            yield item

    return (iter(first), True) if len(first) <= length else (chain(first, rest()), False)


def _length(order: Any) -> int:
    """Its length; -1 if nobody knows it."""
    try:
        return len(order)
    except (TypeError, NotImplementedError):
        return -1


def _set_epoch(epoch: int, *owners: Any) -> None:
    for owner in owners:
        set_epoch = getattr(owner, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def _changed(loader: Any, **attributes: Any) -> Any:
    """A copy of a DataLoader; it refuses to have some attributes set."""
    changed = copy.copy(loader)
    vars(changed).update(attributes, _iterator=None)
    return changed


def batches_of(source: Any) -> Batches:
    """The batches of a DataLoader, a data set or another object that can be iterated.

    A data set is a loader that makes no batches. A DataLoader that iterates in its own way is loaded from its first
    batch on.

    :raises RequestError: it can't be iterated more than once
    """
    data = sys.modules.get("torch.utils.data")
    if data is not None:
        if isinstance(source, data.Dataset) and not isinstance(source, data.IterableDataset):
            source = data.DataLoader(source, batch_size=None)
        if isinstance(source, data.DataLoader) and type(source).__iter__ is data.DataLoader.__iter__:
            is_iterable = isinstance(source.dataset, data.IterableDataset)
            return StreamedBatches(source) if is_iterable else IndexedBatches(source)
    if isinstance(source, (Iterator, str, bytes)) or not isinstance(source, Iterable):
        raise RequestError(
            "loader",
            source,
            found="an iterator, which can't begin again"
            if isinstance(source, Iterator)
            else "no batches to iterate over",
            remedy="Pass a DataLoader, a data set, or an object that can be iterated again",
        )
    return Batches(source)
