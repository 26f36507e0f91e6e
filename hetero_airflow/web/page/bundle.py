"""The built page, and how Airflow's UI finds it.

Airflow's UI loads the bundle as an ES module into its own React tree, so the bundle has neither React nor Chakra.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from hetero_airflow.agent.protocol import PREFIX

BUNDLE = Path(__file__).parents[1] / "static" / "hetero.js"
ICON = Path(__file__).parents[1] / "static" / "devices.svg"

ROUTES = {"nav": "hetero-devices", "task_instance": "hetero-placement", "dashboard": "hetero-card"}
"""Destination in Airflow's UI → the app's part of the address."""


@cache
def bundle_digest() -> str:
    """A short digest of the bundle, so that a browser loads a new version at once and keeps an old one for ever."""
    return hashlib.blake2b(BUNDLE.read_bytes(), digest_size=8).hexdigest()


def react_apps() -> list[dict[str, Any]]:
    """The apps for `AirflowPlugin.react_apps`.

    The address of the bundle is relative, so it works below a sub-path. The bundle sets a global of each name.
    """
    url = f"{PREFIX.lstrip('/')}/page/hetero.js?v={bundle_digest()}"
    icon = f"{PREFIX.lstrip('/')}/page/devices.svg"
    apps: list[dict[str, Any]] = [
        {"name": "Devices", "destination": "nav", "nav_top_level": True, "icon": icon},
        {"name": "Placement", "destination": "task_instance", "icon": icon},
        {"name": "DeviceCard", "destination": "dashboard"},
    ]
    return [{**app, "bundle_url": url, "url_route": ROUTES[app["destination"]]} for app in apps]
