"""Bytes, durations, shares and byte ranges: one grammar for code, configuration and command line."""

import math
import re
from dataclasses import dataclass
from datetime import timedelta

from hetero_airflow.errors import RequestError

MILLI_PER_DEVICE = 1000
"""A device is leased in thousandths: a share of 0.5 is 500, a whole device or a CPU core is 1000."""

MAX_BYTES = 1 << 50
"""One pebibyte. No device or host has so much memory today, so a larger size is a mistyped unit."""

MAX_DURATION_S = 366 * 86400.0

_BYTE_UNITS = {
    "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
    "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40,
}  # fmt: skip
_UNIT_NAMES = {
    "K": "KB", "M": "MB", "G": "GB", "T": "TB",
    "GIG": "GB", "GIGS": "GB", "GIGABYTE": "GB", "GIGABYTES": "GB", "MEG": "MB", "MEGS": "MB", "MEGABYTES": "MB",
    "TERABYTE": "TB", "TERABYTES": "TB", "GIBIBYTES": "GiB",
}  # fmt: skip
"""What people write → the unit that they mean."""

_SMALLEST_NUMBER = 2**20
"""A smaller plain number of bytes is taken for a size whose unit is missing: 80 for "80GiB"."""

_DURATION_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_NAMES = {
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
    "hr": "h", "hrs": "h", "hour": "h", "hours": "h", "day": "d", "days": "d",
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


def parse_bytes(value: object, field: str = "memory") -> int:
    """Bytes from an int or a text such as ``40GiB`` (binary) or ``80GB`` (decimal). A text needs a unit.

    >>> parse_bytes("40GiB"), parse_bytes("80GB"), parse_bytes(40 * 2**30)
    (42949672960, 80000000000, 42949672960)

    :raises RequestError: not a size, zero, negative, or above one pebibyte
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size: float = value
    else:
        number, unit = _quantity(value)
        if unit.upper() not in _BYTE_UNITS:
            raise _no_size(field, value, unit)
        size = number * _BYTE_UNITS[unit.upper()]
    if size <= 0:
        raise RequestError(field, value, found="a size that is not above 0", remedy='Write a size such as "40GiB"')
    if size > MAX_BYTES:
        raise RequestError(field, value, found="a size above the limit of 1024TiB", remedy="Check the unit")
    return math.ceil(size)


def check_plain_bytes(value: object, field: str) -> None:
    """Refuse a plain number that a person meant to have a unit.

    :raises RequestError: a number from 1 to one mebibyte
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _SMALLEST_NUMBER:
        raise _no_size(field, value, "")


def _no_size(field: str, value: object, unit: str) -> RequestError:
    meant = _UNIT_NAMES.get(unit.upper(), "" if unit else "GiB")
    number = str(value).removesuffix(unit).strip()
    hint = f'Did you mean "{number}{meant}"? ' if meant and number.strip("0.") else ""
    found = "a number without a unit" if not unit else f"the unknown unit {unit!r}" if unit != "?" else "no size"
    return RequestError(field, value, found=found, remedy=f'{hint}Write a size such as "40GiB" or "80GB"')


def format_bytes(size: int) -> str:
    """A size for people, in binary units.

    >>> format_bytes(42949672960), format_bytes(85520809984), format_bytes(512)
    ('40GiB', '79.6GiB', '512B')
    """
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f}".removesuffix(".0") + unit
    return f"{size}B"


def parse_duration_s(value: object, field: str = "wait_timeout") -> float:
    """Seconds from a number, a timedelta, or a text such as ``90s``, ``30m``, ``2h``, ``1d``.

    >>> parse_duration_s("30m"), parse_duration_s(5)
    (1800.0, 5.0)

    :raises RequestError: not a duration, zero, negative, or above 366 days
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(max(-1, min(value, 2 * MAX_DURATION_S)))
    else:
        number, unit = _quantity(value)
        if unit not in _DURATION_UNITS:
            raise _no_duration(field, value, unit)
        seconds = number * _DURATION_UNITS[unit]
    if not seconds > 0:
        raise RequestError(field, value, found="a time that is not above 0 s", remedy='Write a duration such as "30m"')
    if seconds > MAX_DURATION_S:
        raise RequestError(field, value, found="a time above the limit of 366 days", remedy="Check the unit")
    return seconds


def format_duration(seconds: float) -> str:
    """A time for people, in its two largest units; ``0 s`` if it is negative.

    >>> format_duration(42.9), format_duration(4680), format_duration(90061), format_duration(-1)
    ('42 s', '1 h 18 min', '1 d 1 h', '0 s')
    """
    remaining_s = max(0, int(seconds))
    parts: list[tuple[int, str]] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        number, remaining_s = divmod(remaining_s, length)
        if number or parts:
            parts.append((number, unit))
    return " ".join(f"{number} {unit}" for number, unit in parts[:2] if number) or "0 s"


def _no_duration(field: str, value: object, unit: str) -> RequestError:
    meant = _DURATION_NAMES.get(unit.lower(), unit.lower() if unit.lower() in _DURATION_UNITS else "")
    hint = f'Did you mean "{str(value).strip().removesuffix(unit).strip()}{meant}"? ' if meant else ""
    parts = re.findall(r"([0-9]+)([smhd])", value) if isinstance(value, str) and len(value) <= 64 else []
    if "".join(map("".join, parts)) == value:  # 1h30m
        total_s = sum(int(number) * _DURATION_UNITS[name] for number, name in parts)
        unit_of = next(name for name in "hms" if total_s % _DURATION_UNITS[name] == 0)
        hint = f'Did you mean "{total_s // _DURATION_UNITS[unit_of]:.0f}{unit_of}"? '
    found = "no duration" if unit == "?" else f"the unknown unit {unit!r}"
    return RequestError(field, value, found=found, remedy=f'{hint}Write a duration such as "30m" or "2h"')


def _quantity(value: object) -> tuple[float, str]:
    """The number and the unit of a text; the unit is "?" if it is none."""
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= 64 else None
    return (float(match[1]), match[2]) if match else (0.0, "?")


def share_to_milli(share: float) -> int:
    """A share (0 to 1) in thousandths of a device, at least one.

    >>> share_to_milli(0.5), share_to_milli(1 / 3)
    (500, 333)
    """
    return max(1, round(share * MILLI_PER_DEVICE))


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A closed range of bytes; None is open. A bare size means "at least".

    >>> str(ByteRange.parse("24GiB..80GiB")), str(ByteRange.parse("40GiB"))
    ('24GiB..80GiB', '40GiB..')
    >>> ByteRange.parse("40GiB..").holds(parse_bytes("48GiB"))
    True
    """

    minimum: int | None
    maximum: int | None

    @classmethod
    def parse(cls, value: object, field: str = "memory") -> "ByteRange":
        """A range from ``40GiB..``, ``..80GiB``, ``24GiB..80GiB``, ``40GiB``, an int, or a range.

        :raises RequestError: not a range, open at both ends, or with the larger size first
        """
        if isinstance(value, ByteRange):
            return value
        if not (isinstance(value, str) and ".." in value):
            return cls(parse_bytes(value, field), None)
        low, _, high = value.partition("..")
        if not low.strip() and not high.strip():
            raise RequestError(
                field, value, found="a range open at both ends", remedy='Write "40GiB.." or leave it out'
            )
        minimum = parse_bytes(low, field) if low.strip() else None
        maximum = parse_bytes(high, field) if high.strip() else None
        if minimum is not None and maximum is not None and minimum > maximum:
            remedy = f'Swap the two sizes: "{high.strip()}..{low.strip()}"'
            raise RequestError(field, value, found="a range that ends before it begins", remedy=remedy)
        return cls(minimum, maximum)

    def holds(self, size: int) -> bool:
        """Whether the size lies in the range."""
        return (self.minimum is None or size >= self.minimum) and (self.maximum is None or size <= self.maximum)

    def __str__(self) -> str:
        low = "" if self.minimum is None else format_bytes_exact(self.minimum)
        high = "" if self.maximum is None else format_bytes_exact(self.maximum)
        return f"{low}..{high}"


_NOMINAL_TOLERANCE = 0.05


def nominal_range(gigabytes: int) -> ByteRange:
    """The memory of devices that are sold with that size. Makers count in 2^30 or in 10^9 bytes, and some memory is
    reserved, so it is 5 % less than the smaller one to 5 % more than the larger one.

    A T4 is sold with 16 GB and reports 15 GiB; an H200 is sold with 141 GB and reports 140.4 GiB:

    >>> nominal_range(16).holds(15 * 2**30), nominal_range(141).holds(int(140.4 * 2**30))
    (True, True)
    """
    low, high = 1 - _NOMINAL_TOLERANCE, 1 + _NOMINAL_TOLERANCE
    return ByteRange(math.ceil(gigabytes * 10**9 * low), math.floor(gigabytes * 2**30 * high))


def nominal_sizes(size: int) -> range:
    """The sizes in GB whose `nominal_range` holds the size in bytes.

    >>> nominal_sizes(80 * 2**30)
    range(77, 91)
    """
    low, high = 1 - _NOMINAL_TOLERANCE, 1 + _NOMINAL_TOLERANCE
    return range(math.ceil(size / (2**30 * high)), math.floor(size / (10**9 * low)) + 1)


def format_bytes_exact(size: int) -> str:
    """A size in the largest unit that is exact, so that parsing it gives the same size.

    >>> format_bytes_exact(80 * 10**9), format_bytes_exact(40 * 2**30), format_bytes_exact(1001)
    ('80GB', '40GiB', '1001B')
    """
    for unit, factor in (
        ("TiB", 2**40), ("TB", 10**12), ("GiB", 2**30), ("GB", 10**9),
        ("MiB", 2**20), ("MB", 10**6), ("KiB", 2**10), ("KB", 10**3),
    ):  # fmt: skip
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"
