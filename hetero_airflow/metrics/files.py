"""The files of this folder for Prometheus and Grafana."""

from importlib.resources import files


def packaged_text(name: str) -> str:
    """The text of ``alerts.yml`` or ``dashboard.json``."""
    return (files(__package__) / name).read_text(encoding="utf-8")
