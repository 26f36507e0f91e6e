"""``airflow hetero config``: the settings as lines for airflow.cfg or for a shell. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import groupby

from hetero_airflow.cli.output import clean
from hetero_airflow.cli.setup.recommended_settings import Setting


def ini_text(settings: Iterable[Setting], pool: str) -> str:
    """Sections for airflow.cfg, each setting under a comment that says what happens without it."""
    lines = ["# Merge these into the sections of airflow.cfg, or set them as variables: airflow hetero config --env"]
    for section, group in groupby(settings, key=lambda setting: setting.recommendation.section):
        lines += ["", f"[{section}]"]
        for setting in group:
            value = setting.wanted.replace("%", "%%")
            lines += [_cost(setting), f"{setting.recommendation.option} = {clean(value)}"]
    return "\n".join([*lines, "", *_notes(pool)])


def environment_text(settings: Iterable[Setting], pool: str) -> str:
    """Lines for a shell."""
    lines = []
    for setting in settings:
        lines += [_cost(setting), f"export {setting.recommendation.variable}={shlex.quote(clean(setting.wanted))}", ""]
    return "\n".join([*lines, *_notes(pool)])


def _cost(setting: Setting) -> str:
    return f"# Without it, {setting.recommendation.cost}."


def _notes(pool: str) -> list[str]:
    return [
        f"# The executor creates the pool {clean(pool)} of device tasks at its first start.",
        "# The tables come with: airflow db migrate",
        "# SQLite serves one scheduler. A PostgreSQL URL names its driver, as in postgresql+psycopg2://user@host/airflow,",
        "# since SQLAlchemy 2.1 takes postgresql:// for psycopg 3.",
        "# Is all as it should be? airflow hetero config --check",
    ]
