"""The section [hetero] of Airflow's configuration, read once when the executor starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow.configuration import conf
from airflow.utils.net import get_hostname

from hetero_airflow import policies
from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.executor.context.site_links import parse_site_links
from hetero_airflow.model.team_shares import NO_TEAM_SHARES, TeamShares
from hetero_airflow.recovery.rules import DEFAULTS, Rules, parse_rules
from hetero_airflow.registry import names
from hetero_airflow.settings import SECTION, default


@dataclass(frozen=True, slots=True)
class Configuration:
    """The options of `hetero_airflow.settings.OPTIONS`, parsed."""

    policy: str
    pool: str
    queue: str
    lease_timeout_s: float
    discovery_interval_s: float
    probe_timeout_s: float
    worker_timeout_s: float
    history_days: float
    grace_s: float
    min_run_s: float
    labels: dict[str, str]
    worker_id: str
    shares: TeamShares = NO_TEAM_SHARES
    rules: Rules = DEFAULTS
    site_links: Mapping[str, float] = field(default_factory=dict)


def read_configuration() -> Configuration:
    """The options as configured.

    :raises SettingsError: an option that can't be read
    """
    return Configuration(
        policy=_policy(),
        pool=_text("pool"),
        queue=_text("queue"),
        lease_timeout_s=_seconds("lease_timeout_s"),
        discovery_interval_s=_seconds("discovery_interval_s"),
        probe_timeout_s=_seconds("probe_timeout_s"),
        worker_timeout_s=_seconds("worker_timeout_s"),
        history_days=_seconds("history_days"),
        grace_s=_seconds("grace_s"),
        min_run_s=_seconds("min_run_s"),
        labels=parse_labels(_text("labels"), f"[{SECTION}] labels"),
        worker_id=get_hostname(),
        rules=parse_rules(_text("recovery_rules")),
        shares=TeamShares.parse(_text("shares"), f"[{SECTION}] shares"),
        site_links=parse_site_links(_text("site_links"), f"[{SECTION}] site_links"),
    )


def _text(name: str) -> str:
    return str(conf.get(SECTION, name, fallback=default(name))).strip() or default(name)


def _policy() -> str:
    name = _text("policy")
    known = names(policies.GROUP, policies.POLICIES)
    if name not in known:
        raise SettingsError(
            f"[{SECTION}] policy = {name}",
            found="no such policy",
            remedy=f"Use {policies.SUBSTITUTES.get(name) or ', '.join(known)}",
        )
    return name


def _seconds(name: str) -> float:
    text = _text(name)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise SettingsError(f"[{SECTION}] {name} = {shorten(text)}", found="no positive number", remedy="Give one")
    return value


def parse_labels(text: str, asked: str) -> dict[str, str]:
    """A worker's labels from a JSON object of texts; `asked` names the option that has it.

    :raises SettingsError: it is none
    """
    try:
        labels = json.loads(text)
    except (ValueError, RecursionError):
        labels = None
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise SettingsError(
            f"{asked} = {shorten(text)}",
            found="no JSON object of texts",
            remedy='Write it as {"zone": "a", "rack": "7"}',
        )
    return labels
