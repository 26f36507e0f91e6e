"""The extra of an Airflow connection, read without the package that knows its type."""

import json
from typing import Any

from hetero_airflow.errors import SettingsError, shorten

_EXAMPLE = 'Write it as in {"region_name": "eu-central-1"}'


def extra_of(connection: Any) -> dict[str, Any]:
    """The extra. A name may have the prefix that older forms of Airflow's page wrote; without it, it comes first.

    :raises SettingsError: it is no JSON object
    """
    extra = object_in(connection, "extra", connection.extra or "{}")
    prefix = f"extra__{connection.conn_type}__"
    in_order = sorted(extra.items(), key=lambda item: not item[0].startswith(prefix))
    return {name.removeprefix(prefix): value for name, value in in_order}


def object_in(connection: Any, name: str, value: Any) -> dict[str, Any]:
    """A JSON object, or the text of one.

    :raises SettingsError: it is none; its content is not shown, since it may be secret
    """
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise refused(connection, f"{name} that is no JSON object", _EXAMPLE)
    return parsed


def refused(connection: Any, found: str, remedy: str) -> SettingsError:
    """The error for a connection that can't be used."""
    return SettingsError(f"the connection {shorten(connection.conn_id)}", found=found, remedy=remedy)
