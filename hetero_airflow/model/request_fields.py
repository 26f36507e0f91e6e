"""Fields of a request that are read from texts and mappings, with their readers."""

import re
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Annotated, Any, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, ValidationError

from hetero_airflow.errors import DataError, RequestError, shorten
from hetero_airflow.model.data_url import DataUrl
from hetero_airflow.model.devices.names import ARCHITECTURES, MAX_COUNT, architecture_of
from hetero_airflow.model.topology import Topology
from hetero_airflow.units import ByteRange, check_plain_bytes, parse_bytes
from hetero_airflow.validation import did_you_mean, first_problem

MAX_REQUIREMENTS = 32
MAX_NAME = 128
MAX_TEXT = 256
MAX_DATA_URLS = 32
MAX_URL = 1024

_EXAMPLES = {"runtime": '{"cuda": ">=12.4"}', "labels": '{"zone": "a"}'}

ModelT = TypeVar("ModelT", bound=BaseModel)


def _optional(read: Callable[[Any], object]) -> Callable[[object], object]:
    return lambda value: None if value is None else read(value)


def _specifier(text: object, field: str) -> str:
    try:
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise InvalidSpecifier
        return str(SpecifierSet(text))
    except InvalidSpecifier as error:
        remedy = f'{_nearest_specifier(text)}Write one as pip does, such as ">=12.4,!=12.6.*"'
        raise RequestError(field, text, found="no version specifier", remedy=remedy) from error


def _nearest_specifier(text: object) -> str:
    """The question for what a person can have meant by a bare version, or by an operator of another language."""
    is_readable = isinstance(text, str | int | float) and len(shorten(text)) < 32
    match = re.fullmatch(r"\s*(=|=>|=<|\^|~|v)?\s*([0-9]+(?:\.[0-9]+)*)\s*\+?\s*", str(text)) if is_readable else None
    if match is None:
        return ""
    operator = {"=<": "<=", "=": "=="}.get(match[1] or "", ">=")
    return f'Did you mean "{operator}{match[2]}"? '


def _read_mapping(field: str, value: object) -> Mapping[object, object]:
    if not isinstance(value, Mapping):
        found = f"a value of the type {type(value).__name__}"
        raise RequestError(field, value, found=found, remedy=f"Write a mapping, as in {_EXAMPLES[field]}")
    if len(value) > MAX_REQUIREMENTS:
        found = f"{len(value)} names, above the limit of {MAX_REQUIREMENTS}"
        raise RequestError(field, value, found=found, remedy="Name only what the task needs")
    for key in value:
        if not isinstance(key, str):
            found = f"a name of the type {type(key).__name__}"
            raise RequestError(field, key, found=found, remedy="Use texts as names")
        if not 0 < len(key) <= MAX_NAME:
            found = f"a name of {len(key)} characters"
            raise RequestError(field, key, found=found, remedy=f"Use names of 1 to {MAX_NAME} characters")
    return value


def _read_runtime(value: object) -> object:
    requirements = _read_mapping("runtime", {} if value is None else value)
    read: dict[str, str] = {}
    for name, specifier in sorted(((str(k).lower(), v) for k, v in requirements.items()), key=itemgetter(0)):
        if name in read:
            raise RequestError("runtime", name, found="the name twice, in upper and lower case", remedy="Give it once")
        read[name] = _specifier(specifier, f"runtime[{name!r}]")
    return read


def _read_labels(value: object) -> object:
    labels = _read_mapping("labels", {} if value is None else value)
    for key, text in labels.items():
        if not isinstance(text, str):
            found = f"a value of the type {type(text).__name__}"
            raise RequestError(f"labels[{key!r}]", text, found=found, remedy=_label_remedy(text))
        if len(text) > MAX_TEXT:
            found = f"{len(text)} characters, above the limit of {MAX_TEXT}"
            raise RequestError(f"labels[{key!r}]", text, found=found, remedy="Use a shorter text")
        if text.startswith("!") and not all(excluded.strip() for excluded in text[1:].split(",")):
            raise RequestError(
                f"labels[{key!r}]", text, found="a ! before nothing", remedy='Write "!7" for not 7, "!7,8" for neither'
            )
    return {str(name): labels[name] for name in sorted(labels, key=str)}


def _label_remedy(value: object) -> str:
    if isinstance(value, bool):
        return f'Write it as a text: "{str(value).lower()}"'
    if isinstance(value, int | float):
        return f'Write it as a text: "{value}"'
    return 'Write one text, "!7,8" to exclude several, or leave the label out'


def _read_host_memory(value: object) -> int:
    if isinstance(value, str) and ".." in value:
        remedy = f'Write one size: "{value.partition("..")[0].strip() or "64GiB"}"'
        raise RequestError("host_memory", value, found="a range", remedy=remedy)
    return parse_bytes(value, "host_memory")


def _switch(name: str, remedy: str) -> Callable[[object], object]:
    """A reader of True, False, or their texts; nothing means True."""

    def read(value: object) -> object:
        texts = {"true": True, "false": False}  # of a rendered template
        found = texts.get(value.strip().lower(), value) if isinstance(value, str) else value
        if found is None or isinstance(found, bool):
            return found is not False
        raise RequestError(name, value, found="neither True nor False", remedy=remedy)

    return read


def _architecture(name: object) -> str:
    known = architecture_of(name) if isinstance(name, str) else None
    if known is None:
        hint = did_you_mean(name, ARCHITECTURES) if isinstance(name, str) else ""
        remedy = f"{hint}Use {', '.join(ARCHITECTURES)}"
        raise RequestError("architecture", name, found="no known CPU architecture", remedy=remedy)
    return known


def read_data(value: object) -> tuple[str, ...]:
    """The URLs of the argument ``data``, in their order, each once.

    :raises RequestError: no URL of an object store, one that is too long, or too many
    """
    urls = [value] if isinstance(value, str) else value
    if urls is None:
        return ()
    if not isinstance(urls, list | tuple):
        remedy = 'Write a URL or a list of URLs, as in ["s3://lake/train/", "s3://lake/labels.csv"]'
        raise RequestError("data", value, found=f"a value of the type {type(value).__name__}", remedy=remedy)
    read = tuple(dict.fromkeys(map(_read_url, urls)))
    if len(read) > MAX_DATA_URLS:
        found = f"{len(read)} URLs, above the limit of {MAX_DATA_URLS}"
        raise RequestError("data", value, found=found, remedy='Name their folder, as in "s3://lake/train/"')
    return read


def _read_url(url: object) -> str:
    shown = str(url).partition("://")[0] if "@" in str(url) else url
    if isinstance(url, str) and len(url) > MAX_URL:
        found = f"a URL of {len(url)} characters, above the limit of {MAX_URL}"
        raise RequestError("data", shown, found=found, remedy="Name its folder")
    try:
        return DataUrl.of(url).url
    except DataError as error:
        raise RequestError("data", shown, found=error.found, remedy=error.remedy) from None


_read_size = _optional(_read_host_memory)
_read_driver = _optional(lambda value: _specifier(value, "driver"))

ByteRangeField = Annotated[
    ByteRange | None,
    BeforeValidator(_optional(ByteRange.parse), json_schema_input_type=str | int | None),
    PlainSerializer(lambda r: None if r is None else str(r), return_type=str | None),
]
HostMemoryField = Annotated[int | None, BeforeValidator(_read_size, json_schema_input_type=str | int | None)]
TopologyField = Annotated[
    Topology | None,
    BeforeValidator(
        _optional(Topology.parse),
        json_schema_input_type=Annotated[str, Field(pattern=r"^(nvlink|numa|host|rack|site)(@.+)?$")] | None,
    ),
    PlainSerializer(lambda t: None if t is None else str(t), return_type=str | None),
]
ArchitectureField = Annotated[str | None, BeforeValidator(_optional(_architecture), json_schema_input_type=str | None)]
_read_spot = _switch("spot", "Write False for no spot worker, True for any worker")
_read_patience = _switch("patience", "Write False to take devices as soon as some are free")
SpotField = Annotated[bool, BeforeValidator(_read_spot, json_schema_input_type=bool)]
PatienceField = Annotated[bool, BeforeValidator(_read_patience, json_schema_input_type=bool)]
DataField = Annotated[tuple[str, ...], BeforeValidator(read_data, json_schema_input_type=str | list[str] | None)]
SpecifierField = Annotated[str | None, BeforeValidator(_read_driver, json_schema_input_type=str | None)]
RuntimeField = Annotated[dict[str, str], BeforeValidator(_read_runtime)]
LabelsField = Annotated[dict[str, str], BeforeValidator(_read_labels)]
LABELS_DESCRIPTION = "Of the worker: 7 exactly this text, !7 any other or none, !7,8 neither of the two."
"""The description in the JSON schema."""


_QUOTA_FIELDS = ("count", "share", "memory", "cpus", "host_memory")


def read_quota(quota: object) -> dict[str, object]:
    """The fields of the argument ``quota``.

    :raises RequestError: no mapping, or an unknown field
    """
    if quota is None:
        return {}
    if not isinstance(quota, Mapping):
        found = f"a value of the type {type(quota).__name__}"
        remedy = f'Write a mapping with any of {", ".join(_QUOTA_FIELDS)}, as in {{"cpus": 8}}'
        raise RequestError("quota", quota, found=found, remedy=remedy)
    for field, value in quota.items():
        if field not in _QUOTA_FIELDS:
            raise unknown_field("quota", field, value, _QUOTA_FIELDS)
    return dict(quota)


def unknown_field(argument: str, field: object, value: object, valid_names: Iterable[str]) -> RequestError:
    """The error for a field that an argument does not have, with the nearest one."""
    name = field if isinstance(field, str) else ""
    remedy = f"{_FIELD_HINTS.get(name) or did_you_mean(name, valid_names)}Use {', '.join(valid_names)}"
    return RequestError(f"{argument}[{shorten(field, 40)}]", value, found="an unknown field", remedy=remedy)


_FIELD_HINTS = {
    word: f'Did you mean "{field}"? '
    for field, words in {
        "host_memory": ("ram", "mem_host", "system_memory"),
        "memory": ("mem", "vram", "gpu_memory", "device_memory"),
        "cpus": ("cpu", "cores", "num_cpus", "vcpus"),
        "count": ("gpus", "gpu", "num_gpus", "number", "quantity", "n", "devices"),
        "share": ("fraction", "part"),
    }.items()
    for word in words
}


def check_sizes(fields: Mapping[str, object]) -> None:
    """Refuse a size that a person wrote as a plain number and meant to have a unit.

    :raises RequestError: such a size
    """
    for field in ("memory", "host_memory"):
        check_plain_bytes(fields.get(field), field)


def merge_fields(first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, object]:
    """The fields of both.

    :raises RequestError: both have a field with different values
    """
    for field in first.keys() & second.keys():
        if first[field] != second[field]:
            found = f"{shorten(first[field])} in the device text"
            raise RequestError(field, second[field], found=found, remedy="Give it once")
    return {**first, **second}


def validated(model: type[ModelT], fields: Mapping[str, Any]) -> ModelT:
    """The model with these fields.

    :raises RequestError: a field is not valid
    """
    try:
        return model(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, RequestError):
            raise cause from None
        path, found = first_problem(error)
        remedy = _VALID.get(str(first["loc"][0]) if first["loc"] else "", "`airflow hetero schema` has the valid forms")
        raise RequestError(path or model.__name__, first["input"], found=found, remedy=remedy) from None


_VALID = {
    "count": f"Give a whole number from 1 to {MAX_COUNT}",
    "cpus": f"Give a whole number of cores from 1 to {MAX_COUNT}",
    "share": "Give a number above 0 and below 1, such as 0.5; for whole devices give count",
    "vendor": 'Use lower-case words such as "nvidia"',
    "kind": 'Use lower-case words such as "gpu"',
    "model": 'Use lower-case words joined by dashes, such as "a100-80gb"',
    "partition": 'Use the name of a MIG profile, such as "1g.10gb"',
}
