"""Conditions on a device as CEL, the expressions by which DRA selects devices.

A selector that reads an attribute which a device lacks ends the whole allocation with an error, so that each is asked
for with ``has`` first (docs/driver-attributes.md of ROCm/k8s-gpu-dra-driver says so, too). Functions are those of
Kubernetes' CEL libraries: ``quantity``, ``semver`` and the strings extension.
"""

from __future__ import annotations

import re
from itertools import pairwise

from hetero_airflow.engines.kubernetes.selectors.versions import VersionRange, version_ranges
from hetero_airflow.units import ByteRange

_WORD_PART = re.compile(r"[0-9]+|[a-z]+|[^0-9a-z]+")
_SIZE = re.compile(r"(\d{1,4})gb")
_GIB = 2**30


def quote(text: str) -> str:
    """The text as a string of CEL, whatever characters it has.

    >>> print(quote('1g"10gb\\\\n') + quote("\\x1b"))
    "1g\\"10gb\\\\n""\\u001b"
    """
    return '"' + "".join(map(_character, text)) + '"'


def attribute(domain: str, name: str) -> str:
    """The expression for an attribute of the device."""
    return f"device.attributes[{quote(domain)}].{name}"


def equals(domain: str, name: str, text: str) -> str:
    """The attribute is there and is this text."""
    read = attribute(domain, name)
    return f"has({read}) && {read} == {quote(text)}"


def one_of(domain: str, name: str, texts: tuple[str, ...]) -> str:
    """The attribute is there and is one of these texts."""
    read = attribute(domain, name)
    return f"has({read}) && {read} in [{', '.join(map(quote, texts))}]"


def memory_is(domain: str, wanted: ByteRange) -> str:
    """The device's memory is known and lies within the range.

    >>> memory_is("gpu.nvidia.com", ByteRange.parse("40GiB.."))
    'has(device.capacity["gpu.nvidia.com"].memory) && \
device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("42949672960")) >= 0'
    """
    read = f"device.capacity[{quote(domain)}].memory"
    ends = [(wanted.minimum, ">="), (wanted.maximum, "<=")]
    # AMD's driver says 0 for a memory that it can't read, which is below no upper end
    floor = [(1, ">=")] if wanted.minimum is None else []
    bounds = [f'{read}.compareTo(quantity("{end}")) {sign} 0' for end, sign in [*floor, *ends] if end is not None]
    return " && ".join([f"has({read})", *bounds])


def version_is(domain: str, name: str, field: str, specifier: str) -> str:
    """The attribute is a version that suits the specifier.

    :raises RequestError: a specifier with more than plain numbers
    """
    read = attribute(domain, name)
    ranges = [_range(read, one) for one in version_ranges(field, specifier, 3)]
    return " && ".join([f"has({read})", *filter(None, ranges)])


def model_is(domain: str, name: str, model: str) -> str:
    """The attribute names the model: as `hetero_airflow.model.device.matches_model` compares, word by word.

    A memory size among the words may also be the device's own, since makers often leave it out of the name.
    """
    read = attribute(domain, name)
    words = [word for word in model.split("-") if word]
    parts = [_word(domain, read, word) for word in words]
    return " && ".join([f"has({read})", *parts])


def _word(domain: str, read: str, word: str) -> str:
    named = f"{read}.lowerAscii().matches({quote(_pattern(word))})"
    size = _SIZE.fullmatch(word)
    if size is None:
        return named
    # a device of n GiB by name has a little less or more
    about = ByteRange(int((int(size[1]) - 0.5) * _GIB), int((int(size[1]) + 0.5) * _GIB))
    return f"({named} || ({memory_is(domain, about)}))"


def _pattern(word: str) -> str:
    """Of RE2: the word between separators; where letters meet digits, there may be a separator in the name."""
    parts = _WORD_PART.findall(word)
    text = re.escape(parts[0])
    for before, part in pairwise(parts):
        text += ("[ _-]?" if before.isalnum() and part.isalnum() else "") + re.escape(part)
    goes_on = "[0-9]*" if word[-1].isalpha() and any(character.isdigit() for character in word) else ""
    return f"(^|[^a-z0-9]){text}{goes_on}([^a-z0-9]|$)"


def _range(read: str, one: VersionRange) -> str:
    bounds = [(one.low, ">="), (one.high, "<")]
    parts = [
        f'{read}.compareTo(semver("{".".join(map(str, end))}")) {sign} 0' for end, sign in bounds if end is not None
    ]
    text = " && ".join(parts)
    return f"!({text})" if one.is_negated else text


def _character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    code = ord(character)
    if 0x20 <= code < 0x7F:
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
