"""Version specifiers as ranges of whole numbers, which node labels and CEL can compare.

A driver's version is in three labels, CUDA's in two, each a whole number. A specifier becomes a union of boxes:
"at least 550.54" is "the major is above 550, or it is 550 and the minor is at least 54".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from hetero_airflow.engines.kubernetes.selectors.affinity import Term, Terms, in_range
from hetero_airflow.errors import RequestError

Numbers = tuple[int, ...]

MAX_NUMBER = 2**31
"""Kubernetes compares 64-bit integers; no real version comes near this."""

_Box = tuple[tuple[int, int | None], ...]
"""(least, greatest) of each number; None is open."""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions from `low` up to but not including `high`; None is open. Negated: all other versions."""

    low: Numbers | None
    high: Numbers | None
    is_negated: bool = False


def version_ranges(field: str, specifier: str, length: int) -> tuple[VersionRange, ...]:
    """The ranges that must all contain a version of `length` numbers.

    >>> version_ranges("driver", "!=550.54.*", 3)
    (VersionRange(low=(550, 54, 0), high=(550, 55, 0), is_negated=True),)

    :raises RequestError: a pre-release or another form that labels don't have
    """
    parts = sorted(SpecifierSet(specifier), key=str)
    return tuple(_range(field, part, length) for part in parts)


def version_terms(field: str, specifier: str, keys: Sequence[str]) -> Terms:
    """The condition on the labels with a version's numbers.

    >>> for term in version_terms("driver", ">=550.54", ["major", "minor", "revision"]):
    ...     print(*(f"{key} {operator} {values[0]}" for key, operator, values in term), sep=", ")
    major Gt 549, major Lt 551, minor Gt 53
    major Gt 550

    :raises RequestError: no version can match it, or labels can't express it
    """
    boxes: list[_Box] = [((0, None),) * len(keys)]
    for range_ in version_ranges(field, specifier, len(keys)):
        pairs = product(boxes, _boxes(range_, len(keys)))
        boxes = [box for left, right in pairs if (box := _common(left, right)) is not None]
    if not boxes:
        raise RequestError(field, specifier, found="a specifier that no version matches", remedy="Widen it")
    return tuple(_term(box, keys) for box in dict.fromkeys(boxes))


def _range(field: str, part: Specifier, length: int) -> VersionRange:
    is_prefix = part.version.endswith(".*")
    numbers = _numbers(field, part, part.version.removesuffix(".*"))
    exact = _cut(numbers, length)
    has_rest = any(numbers[length:])
    after = _next(exact, length)
    if part.operator in ("==", "!="):
        low, high = exact, after
        if is_prefix:
            high = _next(exact, min(len(numbers), length))
        if has_rest:
            low, high = exact, exact  # no label has the remaining numbers
        return VersionRange(low, high, is_negated=part.operator == "!=")
    if part.operator == ">=":
        return VersionRange(after if has_rest else exact, None)
    if part.operator == ">":
        return VersionRange(after, None)
    if part.operator == "<":
        return VersionRange(None, after if has_rest else exact)
    if part.operator == "<=":
        return VersionRange(None, after)
    return VersionRange(after if has_rest else exact, _next(exact, min(len(numbers) - 1, length)))


def _numbers(field: str, part: Specifier, text: str) -> Numbers:
    version = None if part.operator == "===" else Version(text)
    if version is None or version.epoch or version.local or version.is_prerelease or version.is_postrelease:
        raise RequestError(
            field, str(part), found="more than plain numbers", remedy="Write numbers only, as in >=550.54"
        )
    if max(version.release) > MAX_NUMBER:
        raise RequestError(field, str(part), found="a number above 2^31", remedy="Write the version as it is installed")
    return version.release


def _cut(numbers: Numbers, length: int) -> Numbers:
    return (*numbers, *(0,) * length)[:length]


def _next(numbers: Numbers, length: int) -> Numbers:
    """The least version above all that begin with the first `length` numbers."""
    return (*numbers[: length - 1], numbers[length - 1] + 1, *(0,) * (len(numbers) - length))


def _boxes(range_: VersionRange, length: int) -> list[_Box]:
    if range_.is_negated:
        below = _below(range_.low, length) if range_.low is not None else []
        above = _from(range_.high, length) if range_.high is not None else []
        return [*below, *above]
    below = _below(range_.high, length) if range_.high is not None else [((0, None),) * length]
    above = _from(range_.low, length) if range_.low is not None else [((0, None),) * length]
    return [box for left in above for right in below if (box := _common(left, right)) is not None]


def _from(low: Numbers, length: int) -> list[_Box]:
    """Versions that are at least this one. Trailing zeros don't matter."""
    numbers = _stripped(low)
    boxes = [_box([*map(_only, numbers[:at]), (numbers[at] + 1, None)], length) for at in range(len(numbers) - 1)]
    last: list[tuple[int, int | None]] = [(numbers[-1], None)] if numbers else []
    return [_box([*map(_only, numbers[:-1]), *last], length), *reversed(boxes)]


def _below(high: Numbers, length: int) -> list[_Box]:
    numbers = _stripped(high)
    return [
        _box([*map(_only, numbers[:at]), (0, number - 1)], length) for at, number in enumerate(numbers) if number > 0
    ]


def _stripped(numbers: Numbers) -> Numbers:
    last = max((at for at, number in enumerate(numbers) if number), default=-1)
    return numbers[: last + 1]


def _only(number: int) -> tuple[int, int | None]:
    return number, number


def _box(parts: Sequence[tuple[int, int | None]], length: int) -> _Box:
    return (*parts, *((0, None),) * (length - len(parts)))


def _common(left: _Box, right: _Box) -> _Box | None:
    box: list[tuple[int, int | None]] = []
    for (low, high), (other_low, other_high) in zip(left, right, strict=True):
        least = max(low, other_low)
        most = min((end for end in (high, other_high) if end is not None), default=None)
        if most is not None and most < least:
            return None
        box.append((least, most))
    return tuple(box)


def _term(box: _Box, keys: Sequence[str]) -> Term:
    return tuple(
        requirement for key, (low, high) in zip(keys, box, strict=True) for requirement in in_range(key, low, high)
    )
