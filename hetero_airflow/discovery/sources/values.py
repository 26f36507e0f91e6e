"""Untrusted answers of vendors' tools → values that the model accepts; None for an invalid answer. Pure."""

import math
import re
from contextlib import suppress

from packaging.version import InvalidVersion, Version

from hetero_airflow.units import MAX_BYTES

_MARKS = re.compile(r"\((?:r|tm|c)\)|[®™©]")
_NO_WORD = re.compile(r"[^a-z0-9._+]+")
_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")
_VERSION = re.compile(
    r"[0-9]+(?:\.[0-9]+)*(?:[.\-_]?(?:alpha|beta|a|b|rc)[.\-_]?[0-9]+)?(?:\.post[0-9]+)?(?:\.dev[0-9]+)?(?![0-9])"
)
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")
_ABSENT = frozenset({"", "n/a", "na", "none", "unknown", "[n/a]", "-"})


def to_word(value: object, fallback: str = "unknown") -> str:
    """A vendor's name of a model as a `DeviceWord`: lower case, joined by dashes, at most 128 characters.

    >>> to_word("A100-SXM4-80GB"), to_word("Radeon RX 7900 XTX"), to_word("???")
    ('a100-sxm4-80gb', 'radeon-rx-7900-xtx', 'unknown')
    """
    text = to_text(value, limit=256) or ""
    word = _NO_WORD.sub("-", _MARKS.sub("", text.lower())).lstrip("-._+")[:128].rstrip("-._")
    return word or fallback


def to_text(value: object, limit: int = 64) -> str | None:
    """The printable characters of a text; None for an empty text, ``N/A`` and anything that is no text.

    >>> to_text(" 550.54.15 "), to_text("N/A"), to_text(None)
    ('550.54.15', None, None)
    """
    if isinstance(value, bytes):
        value = value[: 4 * limit].decode(errors="replace")
    if not isinstance(value, str):
        return None
    text = value[: 4 * limit]
    if not text.isprintable():
        # Surrogates can't be written as UTF-8, and a tool's JSON may have them.
        text = "".join(c if c.isprintable() else " " for c in text if not "\ud800" <= c <= "\udfff")
    text = " ".join(text.split())[:limit].rstrip()
    return None if text.lower() in _ABSENT else text


def to_number(value: object) -> float | None:
    """A finite number from a number, a text such as ``45 C``, or amd-smi's ``{"value": 45, "unit": "C"}``.

    >>> to_number({"value": 45, "unit": "C"}), to_number("98.5"), to_number("N/A"), to_number(float("nan"))
    (45.0, 98.5, None, None)
    """
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, str):
        match = _NUMBER.match(value.strip()[:40])
        value = float(match[0]) if match else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def to_count(value: object, limit: int = 1 << 53) -> int | None:
    """A whole number from 0 to `limit`.

    >>> to_count("16"), to_count(-1), to_count("N/A")
    (16, None, None)
    """
    number = to_number(value)
    return int(number) if number is not None and 0 <= number <= limit else None


def to_bytes(value: object, unit_bytes: int = 1) -> int | None:
    """A size in bytes, from a number of units; None above one pebibyte.

    >>> to_bytes("65536", 2**20)
    68719476736
    """
    number = to_number(value)
    if number is None or not 0 <= number * unit_bytes <= MAX_BYTES:
        return None
    return int(number * unit_bytes)


def to_share(percent: object) -> float | None:
    """A percentage as a share from 0 to 1.

    >>> to_share({"value": 37, "unit": "%"}), to_share(65535)
    (0.37, None)
    """
    number = to_number(percent)
    return number / 100 if number is not None and 0 <= number <= 100 else None


def to_version(value: object) -> str | None:
    """The first version in a text that PEP 440 can compare, in its original spelling.

    The rest is cut off: local parts (``+cpu``), which no specifier needs, and builds (``-83``).

    >>> to_version("2.13.0+cpu"), to_version("8.3.RC2"), to_version("24.1.rc3.7"), to_version("6.4.1-83")
    ('2.13.0', '8.3.rc2', '24.1.rc3', '6.4.1')
    """
    text = (to_text(value, limit=128) or "").lower()
    whole = text.partition("+")[0]
    for match in _VERSION.finditer(text):
        if ("." in match[0] or match[0] == whole) and len(match[0]) <= 64:
            with suppress(InvalidVersion):
                Version(match[0])
                return match[0]
    return None


def to_pci(value: object) -> str | None:
    """A PCI address as /sys writes it.

    >>> to_pci("00000000:07:00.0"), to_pci("0000:C1:00.0"), to_pci("none")
    ('0000:07:00.0', '0000:c1:00.0', None)
    """
    match = _PCI.fullmatch((to_text(value) or "").lower())
    return f"{int(match[1] or '0', 16):04x}:{match[2]}" if match else None


def to_ids(value: object, limit: int = 8192) -> tuple[int, ...]:
    """The numbers of a kernel list such as ``0-3,8``, each below `limit`; unreadable parts are left out.

    >>> to_ids("0-3,8")
    (0, 1, 2, 3, 8)
    """
    ids: list[int] = []
    for part in (value if isinstance(value, str) else "").strip()[:65536].split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part, re.ASCII)
        if match and len(ids) < limit:
            ids.extend(range(int(match[1]), min(int(match[2] or match[1]) + 1, limit)))
    return tuple(ids[:limit])
