"""Decompression within limits of memory; the shards' tests have the files that are refused."""

import tracemalloc

import zstandard

from hetero_airflow.runtime.data.zstd import decompress


def test_a_file_that_grows_ten_thousand_times_needs_little_memory(tmp_path):
    size = 256 << 20
    (tmp_path / "a.zst").write_bytes(zstandard.ZstdCompressor().compress(bytes(size)))
    assert (tmp_path / "a.zst").stat().st_size < size / 10_000
    tracemalloc.start()
    try:
        decompress(tmp_path / "a.zst", tmp_path / "a", size)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20
    assert (tmp_path / "a").stat().st_size == size


def test_skippable_frames_and_several_frames_are_one_content(tmp_path):
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    frames = [zstandard.ZstdCompressor().compress(part) for part in (b"a" * 5000, b"b")]
    (tmp_path / "a.zst").write_bytes(skippable + frames[0] + skippable + frames[1] + skippable)
    decompress(tmp_path / "a.zst", tmp_path / "a", 5001)
    assert (tmp_path / "a").read_bytes() == b"a" * 5000 + b"b"
