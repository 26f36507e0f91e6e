"""Many samples in few objects: each shard is mapped into memory, and the next ones are read ahead."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from tokenize import TokenError
from typing import Any, overload

from safetensors import SafetensorError

from hetero_airflow.errors import DataError, shorten
from hetero_airflow.runtime.data import zstd
from hetero_airflow.runtime.data.cache import Cache
from hetero_airflow.runtime.data.forked import ForkedCache

MAX_AHEAD = 100
"""A limit that only a mistake exceeds."""


class Shards(Sequence[Any]):
    """The contents of shards, in the order of their URLs; see `data.shards`.

    Taking one begins to read the ones after it. The last one that was taken is kept; the others stay mapped as long as
    a view of them is used. For one thread at a time. A process to which it is forked or pickled reads for itself.

    :param cache: returns the cache of this process
    :raises DataError: a URL with an unknown suffix, no shard, or an invalid `ahead`
    """

    def __init__(self, urls: Sequence[str], ahead: int, cache: Callable[[], Cache | ForkedCache]) -> None:
        if isinstance(ahead, bool) or not isinstance(ahead, int) or not 0 <= ahead <= MAX_AHEAD:
            raise DataError(f"ahead={shorten(ahead)}", found="no number of shards", remedy=f"Use 0 to {MAX_AHEAD}")
        self._urls = tuple(urls)
        self._openers = tuple(map(_opener, self._urls))
        self._ahead = ahead
        self._cache = cache
        self._process = os.getpid()
        self._reading: dict[int, Future[Path]] = {}
        self._last: tuple[int, Any] | None = None

    def __len__(self) -> int:
        return len(self._urls)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> "Shards": ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return Shards(self._urls[index], self._ahead, self._cache)
        index = range(len(self))[index]
        if self._process != os.getpid():
            self._process, self._reading, self._last = os.getpid(), {}, None
        self._read_from(index)
        if self._last is None or self._last[0] != index:
            self._last = None
            path = self._reading[index].result()
            self._last = index, _mapped(self._urls[index], self._openers[index], path)
        return self._last[1]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards, (self._urls, self._ahead, self._cache)

    def _read_from(self, index: int) -> None:
        """Begin to read this one and the next ones, and nothing else."""
        window = range(index, min(index + self._ahead + 1, len(self)))
        for passed in [number for number in self._reading if number not in window]:
            self._reading.pop(passed).cancel()
        cache = self._cache()
        for number in window:
            reading = self._reading.get(number)
            if reading is None or (reading.done() and reading.exception()):
                self._reading[number] = cache.begin(cache.unpacked, self._urls[number])


def _npy(path: Path) -> Any:
    from numpy.lib.format import open_memmap  # reads no pickle, which np.load does for other kinds of files

    return open_memmap(path, mode="c")  # copy on write: torch warns of arrays that can't be written


def _safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


_UNREADABLE = (EOFError, OverflowError, SafetensorError, SyntaxError, TokenError, TypeError, ValueError)
"""What the readers raise if it is another kind of file, or a damaged one."""

_OPENERS: Mapping[str, Callable[[Path], Any]] = {".npy": _npy, ".safetensors": _safetensors}


def _opener(url: str) -> Callable[[Path], Any]:
    suffix = os.path.splitext(url.removesuffix(zstd.SUFFIX))[1] if isinstance(url, str) else ""
    if suffix not in _OPENERS:
        known = ", ".join(f"{suffix}, {suffix}{zstd.SUFFIX}" for suffix in _OPENERS)
        found = f"the suffix {shorten(suffix)}" if suffix else "no suffix"
        raise DataError(f"the shard {shorten(url)}", found=found, remedy=f"Use one of {known}")
    return _OPENERS[suffix]


def _mapped(url: str, opener: Callable[[Path], Any], path: Path) -> Any:
    asked = f"to map the shard {shorten(url)}"
    try:
        return opener(path)
    except ModuleNotFoundError as error:
        remedy = "Install hetero-airflow[torch] on the workers, or use .npy"
        raise DataError(asked, found=f"no package {error.name}", remedy=remedy) from None
    except _UNREADABLE as error:
        found = f"a file that can't be read ({error})"
        raise DataError(asked, found=found, remedy="Write it again, without Python objects in it") from error
