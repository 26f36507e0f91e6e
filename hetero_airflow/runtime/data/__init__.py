"""Data of object stores, read once per host.

In a task::

    from hetero_airflow.runtime import data

    table = pandas.read_parquet(data.cached("s3://lake/day=1/part-0.parquet"))
    images = ImageFolder(data.cached_tree("gs://lake/images"))
    with data.open_cached("az://lake/words.txt") as file:
        words = file.read()
    for images in data.shards("s3://lake/images"):  # .npy objects
        ...
    data.publish("model.pt", "s3://lake/model.pt")

A content of an object never changes: it is stored under its ETag. So processes need no lock to read the same file,
and two contents are never mixed: each request names the ETag (``If-Match``). Each host has a cache of its own, since
reading from another host's disk is no faster than reading from the store.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from hetero_airflow.contract.data_settings import DataSettings
from hetero_airflow.runtime.data.cache import Cache, Published, Revalidate
from hetero_airflow.runtime.data.forked import ForkedCache, is_needed
from hetero_airflow.runtime.data.shards import Shards
from hetero_airflow.settings import DATA_VARIABLE

__all__ = ["cached", "cached_all", "cached_tree", "open_cached", "publish", "published", "shards"]

_caches: dict[int, Cache | ForkedCache] = {}
published: dict[str, Published] = {}
"""URL → what this process last published there."""


def cached(url: str, revalidate: Revalidate = "run") -> Path:
    """A local file with the content of an object. It is read-only, and stays there until this process ends.

    :param url: ``s3://bucket/key``, ``gs://bucket/key`` or ``az://container/key``; nothing in it is quoted
    :param revalidate: when to ask the store whether there is another content: once in this process (``run``), each
        time (``always``), or not if any content is cached (``never``)
    :raises DataError: the URL can't be read, nothing is there, or the store does not answer
    :raises SettingsError: an endpoint that is not allowed
    """
    return _cache().file(url, revalidate)


def cached_all(urls: Iterable[str], revalidate: Revalidate = "run") -> list[Path]:
    """`cached` for many objects, 16 at a time; the paths are in the same order. The first error ends it."""
    return _cache().files(urls, revalidate)


def cached_tree(url: str) -> Path:
    """A local folder with links to all objects whose keys begin with the URL and ``/``. It ends with this process.

    :raises DataError: the URL can't be read, nothing is there, a key is no path, or the store does not answer
    :raises SettingsError: an endpoint that is not allowed
    """
    return _cache().tree(url)


def open_cached(url: str, revalidate: Revalidate = "run") -> BinaryIO:
    """`cached`, opened for reading."""
    return cached(url, revalidate).open("rb")


def shards(source: str | Iterable[str], ahead: int = 1) -> Shards:
    """The contents of many objects, mapped into memory, while the ones that come next are read in the background.

    A sequence: ``for shard in shards`` begins with the first one, ``shards[7]`` and ``shards[7:]`` read none before. A
    ``.npy`` object is a `numpy.memmap`, a ``.safetensors`` object a dict of names and torch's tensors. They are views
    of the kernel's page cache, and what is written to them changes no file. Objects whose names end with ``.npy.zst``
    or ``.safetensors.zst`` are decompressed once per host.

    :param source: URLs, or the URL of a folder: all objects below it, in the order of their keys
    :param ahead: how many shards are read ahead
    :raises DataError: an unknown suffix, or nothing is there; when a shard is taken: it can't be read, or is damaged
    """
    urls = _cache().urls(source) if isinstance(source, str) else list(source)
    return Shards(urls, ahead, _cache)


def publish(file: str | os.PathLike[str], url: str) -> Published:
    """Write a file as the new content of an object, and put it into this host's cache, too.

    A reader sees the old content or the whole new one. What this process reads afterwards is the new one. If the URL is
    that of an asset among the task's outlets, the asset's event gets in its ``extra`` what this returns.

    :param url: ``s3://bucket/key``, ``gs://bucket/key`` or ``az://container/key``
    :raises DataError: the URL can't be written, or the store does not answer
    :raises OSError: the file can't be read
    :raises SettingsError: an endpoint that is not allowed
    """
    published[url] = _cache().publish(Path(file), url)
    return published[url]


def _cache() -> Cache | ForkedCache:
    """A forked process has its own: it can't use its parent's connections and threads."""
    process = os.getpid()
    if process not in _caches:
        cache = ForkedCache() if is_needed() else Cache(DataSettings.of(os.environ.get(DATA_VARIABLE)))
        _caches.setdefault(process, cache)
    return _caches[process]
