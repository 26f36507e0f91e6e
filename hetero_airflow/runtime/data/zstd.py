"""Decompresses zstd files, within limits of memory and size."""

import os
import re
from pathlib import Path
from typing import BinaryIO

from hetero_airflow.model.data_url import digest_of

SUFFIX = ".zst"

_READ_BYTES = 1 << 10
"""What is decompressed at once: at most 256 blocks of 4 bytes, each of which becomes 128 KiB."""

_HEADER_BYTES = 18
_UNKNOWN_SIZE = 2**64 - 1
_SKIPPABLE = 0x184D2A50
"""How a frame begins that has no content (RFC 8878, section 3.1.2); its last four bits are free."""


_UNPACKED = re.compile(r"(.+\.zst)/[0-9a-f]{16}/[^/]*")


def unpacked_url(url: str, etag: str) -> str:
    """The URL under which the decompressed content of an object is cached: a pin of the object keeps it."""
    name = url.rpartition("/")[2].removesuffix(SUFFIX) or "object"
    return f"{url}/{digest_of(etag)[:16]}/{name}"


def stored_url(url: str) -> str:
    """The URL of the object in its store.

    >>> stored_url(unpacked_url("s3://lake/a.npy.zst", "1"))
    's3://lake/a.npy.zst'
    """
    match = _UNPACKED.fullmatch(url)
    return match[1] if match else url


class BadZstd(Exception):
    """The file can't be decompressed; the text says what was found."""


def decompress(file: Path, target: Path, limit_bytes: int) -> None:
    """Write the content of all frames to a new file.

    :raises BadZstd: no zstd, damaged, cut off, more than a frame declares, or more than the limit
    """
    written = 0
    with file.open("rb") as source, target.open("xb") as out:
        while source.read(1):
            source.seek(-1, 1)
            written += _frame(source, out, limit_bytes - written)
        out.flush()
        os.fsync(out.fileno())
    if not file.stat().st_size:
        raise BadZstd("an empty file")


def _frame(source: BinaryIO, out: BinaryIO, room: int) -> int:
    import zstandard

    declared = _declared(source)
    if declared is not None and declared > room:
        raise BadZstd(f"{declared} bytes, where {room} fit")
    most = room if declared is None else declared
    frame = zstandard.ZstdDecompressor().decompressobj()
    written = 0
    while not frame.eof:
        content = source.read(_READ_BYTES)
        if not content:
            raise BadZstd("a file that is cut off")
        try:
            decompressed = frame.decompress(content)
        except zstandard.ZstdError as error:
            raise BadZstd(f"no zstd, or a damaged file ({error})") from error
        written += len(decompressed)
        if written > most:
            raise BadZstd(f"more than {most} bytes, which it declares or which fit")
        out.write(decompressed)
    source.seek(-len(frame.unused_data), 1)
    return written


def _declared(source: BinaryIO) -> int | None:
    """The size that the next frame declares. The position does not change."""
    import zstandard

    header = source.read(_HEADER_BYTES)
    source.seek(-len(header), 1)
    if int.from_bytes(header[:4], "little") & ~0xF == _SKIPPABLE:
        return 0
    try:
        size = zstandard.get_frame_parameters(header).content_size
    except zstandard.ZstdError as error:
        raise BadZstd(f"no zstd ({error})") from error
    return None if size == _UNKNOWN_SIZE else size
