"""``airflow hetero config``: the settings that an installation needs, or a check of those that it has."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable
from itertools import groupby

from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.output import clean, console, show
from hetero_airflow.cli.setup.checks import check_report
from hetero_airflow.cli.setup.installation import check_installation, configured, read_option
from hetero_airflow.cli.setup.recommended_settings import Setting, recommended_settings


@action
def config(args: Namespace) -> None:
    """Print the settings, or check the installation; exit code 1 if it lacks something."""
    if args.check:
        findings = check_installation(database())
        show(*check_report(findings))
        sys.exit(0 if all(finding.is_ok for finding in findings) else 1)
    settings = recommended_settings(configured("queue"), read_option, configured("engine"))
    text = environment_text if args.env else ini_text
    console().out(text(settings, configured("pool")))


def ini_text(settings: Iterable[Setting], pool: str) -> str:
    """Sections for airflow.cfg; a comment over each setting says what happens without it. Pure."""
    lines = ["# Merge these into the sections of airflow.cfg, or set them as variables: airflow hetero config --env"]
    for section, group in groupby(settings, key=lambda setting: setting.recommendation.section):
        lines += ["", f"[{section}]"]
        for setting in group:
            value = setting.wanted.replace("%", "%%")
            lines += [_cost(setting), f"{setting.recommendation.option} = {clean(value)}"]
    return "\n".join([*lines, "", *_notes(pool)])


def environment_text(settings: Iterable[Setting], pool: str) -> str:
    """Lines for a shell. Pure."""
    lines = []
    for setting in settings:
        lines += [_cost(setting), f"export {setting.recommendation.variable}={shlex.quote(clean(setting.wanted))}", ""]
    return "\n".join([*lines, *_notes(pool)])


def _cost(setting: Setting) -> str:
    return f"# Without it, {setting.recommendation.cost}."


def _notes(pool: str) -> list[str]:
    return [
        f"# The executor creates the pool {clean(pool)} of device tasks at its first start.",
        "# This creates the tables: airflow db migrate",
        "# SQLite supports one scheduler. A PostgreSQL URL names its driver, as in postgresql+psycopg2://user@host/airflow,",
        "# since SQLAlchemy 2.1 reads postgresql:// as psycopg 3.",
        "# This checks the installation: airflow hetero config --check",
    ]
