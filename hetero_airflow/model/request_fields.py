"""Fields of a request that are read from texts and mappings, with their readers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Annotated, Any, TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, ValidationError

from hetero_airflow.errors import RequestError, shorten
from hetero_airflow.model.topology import Topology
from hetero_airflow.units import ByteRange, parse_bytes

MAX_REQUIREMENTS = 32
MAX_COUNT = 4096

ModelT = TypeVar("ModelT", bound=BaseModel)


def _optional(read: Callable[[Any], object]) -> Callable[[object], object]:
    return lambda value: None if value is None else read(value)


def _specifier(text: object, field: str) -> str:
    try:
        if not isinstance(text, str) or len(text) > 256:
            raise InvalidSpecifier
        return str(SpecifierSet(text))
    except InvalidSpecifier as error:
        raise RequestError(
            field, text, found="no version specifier", remedy='Write one as pip does, such as ">=12.4,!=12.6.*"'
        ) from error


def _read_mapping(field: str, value: object) -> Mapping[object, object]:
    if not isinstance(value, Mapping) or len(value) > MAX_REQUIREMENTS:
        raise RequestError(
            field, value, found=type(value).__name__, remedy=f"Give a mapping of at most {MAX_REQUIREMENTS} names"
        )
    for key in value:
        if not isinstance(key, str) or not 0 < len(key) <= 128:
            raise RequestError(field, key, found="a bad name", remedy="Use names of 1 to 128 characters")
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
        if not isinstance(text, str) or len(text) > 256:
            raise RequestError(f"labels[{key!r}]", text, found=type(text).__name__, remedy="Give a short text")
        if text.startswith("!") and not all(excluded.strip() for excluded in text[1:].split(",")):
            raise RequestError(
                f"labels[{key!r}]", text, found="a ! before nothing", remedy='Write "!7" for not 7, "!7,8" for neither'
            )
    return {str(name): labels[name] for name in sorted(labels, key=str)}


_read_size = _optional(lambda value: parse_bytes(value, "host_memory"))
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
        remedy = f"Give a mapping of {', '.join(_QUOTA_FIELDS)}"
        raise RequestError("quota", quota, found=type(quota).__name__, remedy=remedy)
    for field in quota:
        if field not in _QUOTA_FIELDS:
            raise RequestError("quota", field, found="an unknown field", remedy=f"Use {', '.join(_QUOTA_FIELDS)}")
    return dict(quota)


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

    :raises RequestError: a field is not valid; pydantic's error, with the valid values
    """
    try:
        return model(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, RequestError):
            raise cause from None
        field = ".".join(str(part) for part in first["loc"]) or model.__name__
        value = first["input"]
        if isinstance(value, float) and not math.isfinite(value):
            value = repr(value)
        remedy = _VALID.get(str(first["loc"][0]), "See `airflow hetero schema` for the valid forms")
        raise RequestError(field, value, found=first["msg"], remedy=remedy) from None


_VALID = {
    "count": f"Give a whole number from 1 to {MAX_COUNT}",
    "cpus": f"Give a whole number of cores from 1 to {MAX_COUNT}",
    "share": "Give a number above 0 and below 1, such as 0.5; whole devices are asked for by count",
    "vendor": 'Use lower-case words such as "nvidia"',
    "model": 'Use lower-case words joined by dashes, such as "a100-80gb"',
}
