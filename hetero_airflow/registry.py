"""Names → classes: one table of strings for each plug-in point, and the entry points of other packages.

A row is imported when it is loaded, so torch, celery and kubernetes stay optional.
"""

import difflib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from hetero_airflow.errors import RegistryError

_EXTRAS = {"boto3": "s3", "obstore": "cloud", "kubernetes": "kubernetes"}
"""Module that may be missing → the extra that installs it."""


def names(group: str, table: Mapping[str, str]) -> list[str]:
    """All names that `load` knows: the table's rows, then those of the entry-point group."""
    return [*table, *(point.name for point in entry_points(group=group) if point.name not in table)]


def load(group: str, table: Mapping[str, str], name: str) -> Any:
    """The object that a table row ``"module:attribute"`` or an entry point of the group names.

    >>> load("hetero_airflow.policies", {"path": "os:getcwd"}, "path").__name__
    'getcwd'

    :raises RegistryError: no such name, or a row that can't be imported
    """
    target = table.get(name) or next((p.value for p in entry_points(group=group) if p.name == name), None)
    if target is None:
        registered = names(group, table)
        near = difflib.get_close_matches(name, registered, n=1)
        raise RegistryError(
            f"{group} {name!r}", found="no such name", remedy=f"Use {' or '.join(near) or ', '.join(registered)}"
        )
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        extra = _EXTRAS.get((getattr(error, "name", None) or "").partition(".")[0])
        remedy = f"Install hetero-airflow[{extra}]" if extra else "Install what it needs"
        found = f"that {target} can't be imported: {error}"
        raise RegistryError(f"{group} {name!r}", found=found, remedy=remedy) from error
