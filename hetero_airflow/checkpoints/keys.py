"""Keys and file names that a store accepts: none that leaves its folder, hides, or breaks a line of a log."""

import re

from hetero_airflow.errors import InvalidCheckpoint, shorten

MAX_KEY_BYTES = 1024
"""S3's limit for the store's prefix and the key together."""

MAX_PART_BYTES = 255
"""Limit of common file systems for one name."""

MAX_FILE_BYTES = 384
"""Leaves room for the longest place before it."""

MANIFEST = "manifest.json"
"""Name of the manifest in a checkpoint's folder; no file of a checkpoint may have it."""

OWN_SUFFIX = "~"
"""Suffix of a store's own files: locks and incomplete files."""

_FOLDER = re.compile(r"[0-9]{12,}-([0-9]+)-[0-9a-f]{8}", re.ASCII)


def folder_name(step: int, token: int, nonce: str) -> str:
    """The folder of a checkpoint within its place; `nonce`, 8 hexadecimal digits, separates two of one step.

    >>> folder_name(41, 7, "0badcafe")
    '000000000041-7-0badcafe'
    """
    return f"{step:012d}-{token}-{nonce}"


def token_of(folder: str) -> int | None:
    """The fencing token of a folder's writer; None if it is no name of a checkpoint.

    >>> token_of("000000000041-7-0badcafe"), token_of("notes")
    (7, None)
    """
    match = _FOLDER.fullmatch(folder)
    return int(match.group(1)) if match else None


def check_key(key: str) -> str:
    """The key, if it names an object below the root of a store.

    >>> check_key("train/fit/manual__1/-1/index.json")
    'train/fit/manual__1/-1/index.json'

    :raises InvalidCheckpoint: empty, absolute, or over 1024 bytes; a part that is empty, ``.``, ``..``, over 255 bytes
        or ends with ``~``; a backslash, NUL or another unprintable character
    """
    return _check("checkpoint key", key, MAX_KEY_BYTES)


def check_file(name: str) -> str:
    """The name, if a file of a checkpoint may have it; it may include folders: ``files/vocabulary.txt``.

    >>> check_file("files/../../.bashrc")
    Traceback (most recent call last):
    ...
    hetero_airflow.errors.InvalidCheckpoint: Checkpoint file 'files/../../.bashrc' can't be used; found the part '..'. \
Use a relative name of printable characters without '..'.

    :raises InvalidCheckpoint: as `check_key`, over 384 bytes, or the manifest's own name
    """
    if name == MANIFEST:
        raise InvalidCheckpoint(f"checkpoint file {name!r}", found="the manifest's own name", remedy="Use another one")
    return _check("checkpoint file", name, MAX_FILE_BYTES)


def _check(kind: str, name: str, limit: int) -> str:
    problem = _problem(name, limit) or next(filter(None, map(_part_problem, name.split("/"))), None)
    if problem:
        remedy = "Use a relative name of printable characters without '..'"
        raise InvalidCheckpoint(f"{kind} {shorten(name)}", found=problem, remedy=remedy)
    return name


def _problem(name: str, limit: int) -> str | None:
    if not name:
        return "an empty name"
    if not name.isprintable():  # before anything is encoded: this refuses lone surrogates too
        return "a character that can't be printed"
    if "\\" in name:
        return "a backslash"
    if len(name.encode()) > limit:
        return f"{len(name.encode())} bytes, over the limit of {limit}"
    return "an absolute path" if name.startswith("/") else None


def _part_problem(part: str) -> str | None:
    if part in ("", ".", ".."):
        return f"the part {part!r}"
    if len(part.encode()) > MAX_PART_BYTES:
        return f"a part of {len(part.encode())} bytes, over the limit of {MAX_PART_BYTES}"
    return f"a part that ends with {OWN_SUFFIX!r}, as the store's own files do" if part.endswith(OWN_SUFFIX) else None
