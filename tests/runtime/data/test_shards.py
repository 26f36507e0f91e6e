"""Shards from a real server of S3: mapped, decompressed once per host, and read ahead."""

import copy
import io
import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
import zstandard
from torch.utils.data import DataLoader, IterableDataset

from hetero_airflow.errors import DataError
from hetero_airflow.runtime import checkpoint, data
from hetero_airflow.runtime.data.bucket import Bucket
from hetero_airflow.runtime.data.folder import CacheFolder
from hetero_airflow.settings import DATA_VARIABLE

PICKLE = pickle.dumps({"a": 1})


def npy(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def compressed(content, **options):
    return zstandard.ZstdCompressor(write_checksum=True, **options).compress(content)


@pytest.fixture
def urls(bucket, use):
    """Four shards of three rows each: 0 to 11."""
    return [bucket.put(f"shards/{n}.npy", npy(np.arange(3 * n, 3 * n + 3))) for n in range(4)]


@pytest.fixture
def downloads(monkeypatch):
    """What is downloaded: `keys` in order, an event in `begun` for each; those with a gate wait until it opens."""
    download = Bucket.download
    noted = SimpleNamespace(keys=[], gates={}, begun=defaultdict(threading.Event))

    def gated(self, version, file):
        noted.keys.append(version.key)
        noted.begun[version.key].set()
        if gate := noted.gates.get(version.key):
            assert gate.wait(60)
        download(self, version, file)

    monkeypatch.setattr(Bucket, "download", gated)
    return noted


def kept(settings):
    """The URLs of what the cache folder holds."""
    root = Path(settings["folder"])
    return {entry.url for entry in CacheFolder(root).entries()} if root.exists() else set()


def is_mapped(array):
    while array is not None and not isinstance(array, np.memmap):
        array = array.base
    return array is not None


def file_mapped_at(address):
    """The file whose pages are at an address of this process; empty if they are of no file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, end = (int(text, 16) for text in line.split()[0].split("-"))
        if first <= address < end:
            return line.split(maxsplit=5)[5] if len(line.split(maxsplit=5)) > 5 else ""
    return ""


@pytest.mark.parametrize("suffix", [".npy", ".npy.zst"])
def test_arrays_are_views_of_the_file(bucket, use, settings, suffix):
    array = np.arange(12, dtype="f4").reshape(3, 4)
    content = npy(array)
    url = bucket.put(f"a{suffix}", compressed(content) if suffix.endswith(".zst") else content)
    (shard,) = data.shards([url])
    assert np.array_equal(shard, array)
    assert is_mapped(shard[1:])
    tensor = torch.from_numpy(shard[1:])  # without a warning: it may be written
    assert file_mapped_at(tensor.data_ptr()).startswith(settings["folder"])
    tensor[:] = 0
    use()
    assert np.array_equal(data.shards([url])[0], array), "the file is not written"


@pytest.mark.parametrize("suffix", [".safetensors", ".safetensors.zst"])
def test_tensors_are_views_of_the_file(bucket, use, settings, suffix):
    tensors = {"x": torch.arange(6000), "half": torch.ones(3, dtype=torch.bfloat16)}
    content = safetensors.torch.save(tensors)
    url = bucket.put(f"a{suffix}", compressed(content) if suffix.endswith(".zst") else content)
    (shard,) = data.shards([url])
    assert {name: tensor.tolist() for name, tensor in shard.items()} == {n: t.tolist() for n, t in tensors.items()}
    assert {file_mapped_at(tensor.data_ptr()).startswith(settings["folder"]) for tensor in shard.values()} == {True}


def test_a_folder_is_all_that_is_below_it_in_order(bucket, urls):
    assert np.concatenate(list(data.shards(f"{bucket.url}/shards"))).tolist() == [*range(12)]


def test_it_is_decompressed_once_per_host_and_only_that_is_kept(bucket, use, settings, downloads):
    content = npy(np.arange(5))
    frames = zstandard.ZstdCompressor(write_content_size=False)
    url = bucket.put("a.npy.zst", compressed(content[:9]) + frames.compress(content[9:]))
    for _ in range(2):
        use()
        (shard,) = data.shards([url])
        assert shard.tolist() == [0, 1, 2, 3, 4]
    assert downloads.keys == ["a.npy.zst"]
    (kept_url,) = kept(settings)
    assert re.fullmatch(rf"{url}/[0-9a-f]{{16}}/a\.npy", kept_url), "a pin of the object keeps it"
    bucket.put("a.npy.zst", compressed(npy(np.arange(2))))
    use()
    assert data.shards([url])[0].tolist() == [0, 1]
    assert data.cached(url).read_bytes()[:4] == b"\x28\xb5\x2f\xfd", "what is cached is the object itself"


def test_what_was_published_from_this_host_is_not_read_again(bucket, use, downloads, tmp_path):
    (tmp_path / "a").write_bytes(compressed(npy(np.arange(5))))
    data.publish(tmp_path / "a", f"{bucket.url}/a.npy.zst")
    use()
    assert data.shards([f"{bucket.url}/a.npy.zst"])[0].tolist() == [0, 1, 2, 3, 4]
    assert data.cached(f"{bucket.url}/a.npy.zst").read_bytes() == (tmp_path / "a").read_bytes()
    assert downloads.keys == []


def test_it_works_without_a_cache_folder(bucket, use):
    use(folder="/proc/nothing")
    url = bucket.put("a.npy.zst", compressed(npy(np.arange(5))))
    assert [shard.tolist() for _ in range(2) for shard in data.shards([url])] == [[0, 1, 2, 3, 4]] * 2


def test_the_next_shards_are_read_while_one_is_used(urls, downloads):
    gate = downloads.gates["shards/1.npy"] = threading.Event()
    shards = data.shards(urls, ahead=2)
    assert downloads.keys == [], "nothing is read before the first one is taken"
    assert shards[0].tolist() == [0, 1, 2], "it does not wait for the next one, which can't end yet"
    assert all(downloads.begun[f"shards/{n}.npy"].wait(60) for n in (1, 2))
    assert "shards/3.npy" not in downloads.keys
    gate.set()
    assert shards[1].tolist() == [3, 4, 5]
    assert downloads.begun["shards/3.npy"].wait(60)
    assert [shard.tolist() for shard in shards[:2]] == [[0, 1, 2], [3, 4, 5]]
    assert sorted(downloads.keys) == [f"shards/{n}.npy" for n in range(4)], "none is read twice"


def test_it_begins_at_any_shard_and_reads_none_before(urls, downloads):
    shards = data.shards(urls, ahead=0)
    assert [shard.tolist() for shard in shards[2:]] == [[6, 7, 8], [9, 10, 11]]
    assert shards[-1].tolist() == [9, 10, 11]
    assert downloads.keys == ["shards/2.npy", "shards/3.npy"]
    assert len(shards) == 4
    with pytest.raises(IndexError):
        shards[4]


class Batches:
    """Rows of shards by number, as docs/data.md has it."""

    def __init__(self, urls):
        self.shards = data.shards(urls, ahead=1)

    def __len__(self):
        return 3 * len(self.shards)

    def __getitem__(self, number):
        return torch.from_numpy(self.shards[number // 3][number % 3 :][:1])


class Stream(IterableDataset):
    def __init__(self, urls):
        self.shards = data.shards(urls)

    def __iter__(self):
        for shard in self.shards:
            yield from torch.from_numpy(shard)


@pytest.mark.parametrize(
    "make",
    [
        lambda urls: DataLoader(Batches(urls), batch_size=None),
        lambda urls: DataLoader(Stream(urls), batch_size=1),
        lambda urls: DataLoader(Stream(urls), batch_size=1, num_workers=1),
    ],
)
def test_a_loader_goes_on_with_the_batch_that_comes_next(urls, make):
    loader = checkpoint.loader(make(urls))
    assert [int(next(loader)) for _ in range(7)] == [*range(7)]
    state = loader.state_dict()
    later = checkpoint.loader(make(urls))
    later.load_state_dict(state)
    assert [int(next(later)) for _ in range(7)] == [7, 8, 9, 10, 11, 0, 1]


def test_a_loader_that_goes_on_reads_no_shard_that_is_done(urls, downloads):
    loader = checkpoint.loader(DataLoader(Batches(urls), batch_size=None), prefetch=0)
    loader.load_state_dict({"seed": 1, "epoch": 0, "batch": 10, "start": [], "workers": None})
    assert int(next(loader)) == 10
    assert downloads.keys == ["shards/3.npy"]


def taken(shards, results):
    results.put([shard.tolist() for shard in shards])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_reads_for_itself(urls, method):
    shards = data.shards(urls[:2])
    shards[0]
    context = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=taken, args=(shards, results))
    process.start()
    assert results.get(timeout=60) == [[0, 1, 2], [3, 4, 5]]
    process.join()
    assert [shard.tolist() for shard in copy.copy(shards)] == [[0, 1, 2], [3, 4, 5]]


OBJECTS = np.array([{}], dtype=object)
DECLARES_LESS = bytearray(compressed(bytes(200_000)))
DECLARES_LESS[5:9] = (1000).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.npy", npy(OBJECTS), r"can't be read \(Array can't be memory-mapped: Python objects in dtype"),
        ("a.npy", PICKLE, r"can't be read \(the magic string is not correct"),
        ("a.npy", npy(np.arange(9))[:-1], r"can't be read \(mmap length is greater than file size"),
        ("a.npy", npy(np.arange(9))[:20], r"can't be read \(EOF"),
        ("a.npy", b"", r"can't be read \(EOF"),
        ("a.npy", npy(np.arange(9)).replace(b"(9,)", b"(((("), r"can't be read \("),
        ("a.safetensors", PICKLE, r"can't be read \(Error while deserializing header"),
        ("a.safetensors.zst", compressed(b""), r"can't be read \(Error while deserializing header"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_no_shard_is_refused_with_its_url(bucket, use, name, content, text):
    url = bucket.put(name, content)
    with pytest.raises(DataError, match=rf"can't map the shard '{url}'; found a file that {text}.*Write it again"):
        data.shards([url])[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (compressed(npy(np.arange(9)))[:-1], "a file that is cut off"),
        (compressed(npy(np.arange(9)))[:5], "no zstd"),
        (compressed(npy(np.arange(9))) + b"and more, which is none", "no zstd"),
        (npy(np.arange(9)), "no zstd"),
        (b"", "an empty file"),
        (compressed(npy(np.arange(9)))[:-1] + b"!", "Restored data doesn't match checksum"),
        (bytes(DECLARES_LESS), "damaged"),
        (compressed(bytes(2_000_000)), "2000000 bytes, where 1000000 fit"),
        (compressed(bytes(900_000)) * 2, "900000 bytes, where 100000 fit"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2_000_000)), "more than 1000000 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_zstd_file_is_refused_and_nothing_is_kept(bucket, use, settings, content, text):
    use(size_bytes=1_000_000)
    url = bucket.put("a.npy.zst", content)
    with pytest.raises(DataError, match=rf"can't decompress '{url}'; found .*{text}.*\. Write it again"):
        data.shards([url])[0]
    assert kept(settings) == set()
    assert not [path for path in Path(settings["folder"]).rglob("a.npy*") if path.is_file()]


@pytest.mark.parametrize(
    ("source", "ahead", "text"),
    [
        (["s3://lake/a.pt"], 1, r"The shard 's3://lake/a.pt'.*; found the suffix '.pt'. Use one of .npy, .npy.zst, "),
        (["s3://lake/a"], 1, "found no suffix"),
        (["s3://lake/a.zst"], 1, "found no suffix"),
        ([7], 1, "The shard 7 .*found no suffix"),
        ([], -1, "ahead=-1 .*found no number of shards. Use 0 to 100"),
        ([], True, "ahead=True"),
    ],
)
def test_what_can_be_no_shard_is_named_before_anything_is_read(use, source, ahead, text):
    with pytest.raises(DataError, match=text):
        data.shards(source, ahead=ahead)


def test_nothing_below_a_folder_is_an_error(bucket, use):
    with pytest.raises(DataError, match="nothing there"):
        data.shards(f"{bucket.url}/nothing")


def test_a_shard_that_could_not_be_read_ahead_fails_where_it_is_taken_and_is_tried_again(bucket, urls):
    shards = data.shards([urls[0], f"{bucket.url}/shards/late.npy"])
    assert shards[0].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="nothing there"):
        shards[1]
    bucket.put("shards/late.npy", npy(np.arange(3)))
    assert shards[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("package", "name", "content", "remedy"),
    [
        ("zstandard", "a.npy.zst", compressed(npy(np.arange(3))), r"Install hetero-airflow\[zstd\]"),
        ("safetensors.torch", "a.safetensors", b"", r"Install hetero-airflow\[torch\]"),
    ],
)
def test_a_missing_package_is_named(bucket, use, monkeypatch, package, name, content, remedy):
    url = bucket.put(name, content)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=f"found no package .*{remedy}"):
        data.shards([url])[0]


DECOMPRESS = """
import sys
from hetero_airflow.runtime import data
from hetero_airflow.runtime.data import zstd

read = zstd._frame


def slow(source, out, room):
    out.write(b"begun")
    out.flush()
    print("begun", flush=True)
    sys.stdin.read()


zstd._frame = slow
data.shards([sys.argv[1]])[0]
"""


def test_kill_9_while_it_is_decompressed_leaves_nothing_wrong(bucket, use, settings):
    url = bucket.put("a.npy.zst", compressed(npy(np.arange(3))))
    environment = {**os.environ, DATA_VARIABLE: json.dumps(settings)}
    with subprocess.Popen(
        [sys.executable, "-c", DECOMPRESS, url], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGKILL)
    assert kept(settings) == set()
    use()
    assert data.shards([url])[0].tolist() == [0, 1, 2]
