"""Checks of names that Kubernetes must accept, and its notation of byte quantities."""

import re

from hetero_airflow.errors import RequestError

_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_NAME_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*")
_MAX_SUBDOMAIN = 253


def is_label_value(text: str) -> bool:
    """Whether a label may have the value: at most 63 letters, digits and, inside, ``.``, ``_`` and ``-``.

    >>> is_label_value("NVIDIA-A100-SXM4-80GB"), is_label_value(""), is_label_value("-a"), is_label_value("a" * 64)
    (True, True, False, False)
    """
    return _LABEL_VALUE.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """Whether a label, a resource or an annotation may have the name: ``zone``, ``nvidia.com/gpu.product``.

    >>> is_qualified_name("nvidia.com/gpu.product"), is_qualified_name("Nvidia.com/gpu"), is_qualified_name("a/b/c")
    (True, False, False)
    """
    prefix, slash, name = text.rpartition("/")
    return _NAME_PART.fullmatch(name) is not None and (not slash or is_subdomain(prefix))


def is_subdomain(text: str) -> bool:
    """Whether an object may have the name (RFC 1123, at most 253 characters).

    >>> is_subdomain("gpu-high"), is_subdomain("GPU"), is_subdomain("a..b")
    (True, False, False)
    """
    return len(text) <= _MAX_SUBDOMAIN and _SUBDOMAIN.fullmatch(text) is not None


def is_extended_resource(text: str) -> bool:
    """Whether it can name a device resource: it has a domain, which is not Kubernetes' own.

    >>> is_extended_resource("nvidia.com/gpu"), is_extended_resource("gpu"), is_extended_resource("kubernetes.io/gpu")
    (True, False, False)
    """
    domain, slash, _ = text.rpartition("/")
    is_own = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    # a quota for it is named requests.<name>, which must be a valid name too
    return bool(slash) and not is_own and is_qualified_name(text) and is_qualified_name(f"requests.{text}")


def check_label(key: str, value: str) -> None:
    """Refuse a label that Kubernetes does not accept.

    :raises RequestError: the key or the value is invalid
    """
    if not is_qualified_name(key):
        raise RequestError(
            "labels",
            key,
            found="no valid name of a label in Kubernetes",
            remedy='Write it as "zone" or "example.com/zone": at most 63 characters after the slash',
        )
    if not is_label_value(value):
        raise RequestError(
            f"labels[{key!r}]",
            value,
            found="no valid value of a label in Kubernetes",
            remedy="Use at most 63 letters, digits, dots, dashes and underscores",
        )


def byte_quantity(size: int) -> str:
    """Bytes in Kubernetes' notation, exact.

    >>> byte_quantity(2 * 2**30), byte_quantity(2**20 + 2**10), byte_quantity(80 * 10**9), byte_quantity(1001)
    ('2Gi', '1025Ki', '78125000Ki', '1001')
    """
    for unit, factor in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
