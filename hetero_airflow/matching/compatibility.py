"""Whether an installed version suits a specifier: of drivers and of software."""

from __future__ import annotations

from functools import lru_cache

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from hetero_airflow.errors import shorten

MAX_VERSION = 128
"""Longer texts are no version; it keeps hostile ones away from the parser."""


@lru_cache(maxsize=4096)
def version_obstacle(installed: str | None, specifier: str) -> str | None:
    """What was found, in words, where the installed version does not suit the specifier; None where it does.

    Pre-releases count as versions: who runs a release candidate of a driver has that driver.

    >>> version_obstacle("550.54.15", ">=535")
    >>> version_obstacle("12.2", ">=12.4,!=12.6.*")
    '12.2'
    >>> version_obstacle(None, ">=535"), version_obstacle("r550 (beta)", ">=535")
    ('no known version', "'r550 (beta)', which is no version")
    """
    if installed is None:
        return "no known version"
    try:
        if len(installed) > MAX_VERSION:
            raise InvalidVersion
        version = Version(installed)
    except InvalidVersion:
        return f"{shorten(installed, 40)}, which is no version"
    return None if SpecifierSet(specifier).contains(version, prereleases=True) else installed
