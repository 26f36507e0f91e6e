"""Conditions on a device as CEL, the expressions with which DRA selects devices.

If a selector reads an attribute that a device lacks, the whole allocation fails. So each expression first checks it
with ``has`` (see docs/driver-attributes.md of ROCm/k8s-gpu-dra-driver). The functions are those of Kubernetes' CEL
libraries: ``quantity``, ``semver`` and the strings extension.
"""

import re
from collections.abc import Iterable
from itertools import pairwise

from hetero_airflow.engines.kubernetes.selectors.versions import VersionRange, version_ranges
from hetero_airflow.model.devices.names import EXTRA_WORDS, VARIANTS, VGPU, is_stem
from hetero_airflow.units import ByteRange, nominal_range

_WORD_PART = re.compile(r"[0-9]+|[a-z]+|[^0-9a-z]+")
_SIZE = re.compile(r"(\d{1,4})gb")


def quote(text: str) -> str:
    """The text as a CEL string, with any characters escaped.

    >>> print(quote('1g"10gb\\\\n') + quote("\\x1b"))
    "1g\\"10gb\\\\n""\\u001b"
    """
    return '"' + "".join(map(_character, text)) + '"'


def attribute(domain: str, name: str) -> str:
    """The expression for an attribute of the device."""
    return f"device.attributes[{quote(domain)}].{name}"


def equals(domain: str, name: str, text: str) -> str:
    """The device has the attribute, and it equals this text."""
    read = attribute(domain, name)
    return f"has({read}) && {read} == {quote(text)}"


def is_one_of(driver: str, domain: str, name: str, values: Iterable[object]) -> str:
    """The device is of the driver, and its attribute has one of these values.

    >>> is_one_of("gpu.nvidia.com", "gpu.nvidia.com", "index", [0, 1])
    'device.driver == "gpu.nvidia.com" && has(device.attributes["gpu.nvidia.com"].index) && \
device.attributes["gpu.nvidia.com"].index in [0, 1]'
    """
    read = attribute(domain, name)
    listed = ", ".join(quote(value) if isinstance(value, str) else str(value) for value in values)
    return f"device.driver == {quote(driver)} && has({read}) && {read} in [{listed}]"


def memory_is(domain: str, memory: ByteRange) -> str:
    """The device's memory is known and within the range.

    >>> memory_is("gpu.nvidia.com", ByteRange.parse("40GiB.."))
    'has(device.capacity["gpu.nvidia.com"].memory) && \
device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("42949672960")) >= 0'
    """
    read = f"device.capacity[{quote(domain)}].memory"
    ends = [(memory.minimum, ">="), (memory.maximum, "<=")]
    # AMD's driver reports 0 for memory that it can't read, which any upper limit would accept
    floor = [(1, ">=")] if memory.minimum is None else []
    bounds = [f'{read}.compareTo(quantity("{end}")) {sign} 0' for end, sign in [*floor, *ends] if end is not None]
    return " && ".join([f"has({read})", *bounds])


def version_is(domain: str, name: str, field: str, specifier: str) -> str:
    """The attribute is a version that matches the specifier.

    :raises RequestError: the specifier has more than plain numbers
    """
    read = attribute(domain, name)
    ranges = [_range(read, range_) for range_ in version_ranges(field, specifier, 3)]
    return " && ".join([f"has({read})", *filter(None, ranges)])


def model_is(domain: str, name: str, model: str) -> str:
    """The attribute names the model, compared word by word like `hetero_airflow.model.device.matches_model`.

    A memory size among the words may also match the device's memory, because product names often leave it out. For the
    same reason a form factor may match a whole name.
    """
    read = attribute(domain, name)
    model_words = [word for word in model.split("-") if word]
    parts = [_word(domain, read, word) for word in model_words]
    return " && ".join([f"has({read})", *parts, *_no_variant(read, model_words)])


def _no_variant(read: str, words: Iterable[str]) -> Iterable[str]:
    """The condition that the name is of no variant that the request does not name."""
    others = sorted(variant for variant in VARIANTS if not any(word.endswith(variant) for word in words))
    vgpu = [] if any(re.search(f"{VGPU.pattern}$", word) for word in words) else [f"{VGPU.pattern}$"]
    patterns = [f"({'|'.join(others)})([^a-z0-9]|$)"] * bool(others) + vgpu
    if patterns:
        yield f"!{read}.lowerAscii().matches({quote('[^a-z0-9](' + '|'.join(patterns) + ')')})"


def _word(domain: str, read: str, word: str) -> str:
    named = f"{read}.lowerAscii().matches({quote('|'.join([_pattern(word), *_names_with(word)]))})"
    size = _SIZE.fullmatch(word)
    if size is None:
        return named
    return f"({named} || ({memory_is(domain, nominal_range(int(size[1])))}))"


def _names_with(word: str) -> list[str]:
    """RE2 patterns of the whole names of models that leave out this word."""
    models = [model for model, left_out in EXTRA_WORDS.items() if word in left_out]
    return [f"^(nvidia[ _-])?{model.replace('-', '[ _-]')}$" for model in models]


def _pattern(word: str) -> str:
    """RE2 pattern of a word between separators. The name may have a separator between letters and digits."""
    parts = _WORD_PART.findall(word)
    text = re.escape(parts[0])
    for before, part in pairwise(parts):
        text += ("[ _-]?" if before.isalnum() and part.isalnum() else "") + re.escape(part)
    suffix = "[0-9]*" if is_stem(word) else ""
    return f"(^|[^a-z0-9]){text}{suffix}([^a-z0-9]|$)"


def _range(read: str, range_: VersionRange) -> str:
    bounds = [(range_.low, ">="), (range_.high, "<")]
    parts = [
        f'{read}.compareTo(semver("{".".join(map(str, end))}")) {sign} 0' for end, sign in bounds if end is not None
    ]
    text = " && ".join(parts)
    return f"!({text})" if range_.is_negated else text


def _character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    code = ord(character)
    if 0x20 <= code < 0x7F:
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
