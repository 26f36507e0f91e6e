"""The section [hetero] of Airflow's configuration, read once when the executor starts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hetero_airflow import engines, policies
from hetero_airflow.contract.airflow_options import host_name, options
from hetero_airflow.discovery.spot import check_notice_setting
from hetero_airflow.discovery.used_devices import parse_processes
from hetero_airflow.engines.preload import parse_preload
from hetero_airflow.errors import RegistryError, RequestError, SettingsError, shorten
from hetero_airflow.executor.context.site_links import parse_site_links
from hetero_airflow.metrics.access import metrics_token
from hetero_airflow.model.team_shares import NO_TEAM_SHARES, TeamShares
from hetero_airflow.model.usage.prices import Prices
from hetero_airflow.model.worker import parse_labels
from hetero_airflow.recovery.rules import DEFAULTS, Rules, parse_rules
from hetero_airflow.registry import load, names
from hetero_airflow.settings import SECTION, default
from hetero_airflow.units import parse_duration_s
from hetero_airflow.validation import did_you_mean


@dataclass(frozen=True, slots=True)
class Configuration:
    """The parsed options of `hetero_airflow.settings.OPTIONS`."""

    policy: str
    pool: str
    queue: str
    lease_timeout_s: float
    discovery_interval_s: float
    probe_timeout_s: float
    worker_timeout_s: float
    forget_workers_after_s: float
    history_days: float
    grace_s: float
    min_run_s: float
    labels: dict[str, str]
    worker_id: str
    shares: TeamShares = NO_TEAM_SHARES
    rules: Rules = DEFAULTS
    site_links: Mapping[str, float] = field(default_factory=dict)
    allowed_processes: frozenset[str] = frozenset()
    exclude_devices: str = ""
    spot_notices: str = ""
    preempt_within_class: bool = True
    patience: bool = True
    wait_for_hardware_s: float = 0.0
    hang_timeout_s: float = 900.0
    """Only the supervisors of tasks use it; the scheduler refuses a wrong value before they meet it."""


def read_configuration() -> Configuration:
    """Read all options.

    :raises SettingsError: an option can't be read
    """
    return Configuration(worker_id=host_name(), **{name: read() for name, read in _readers().items()})


def option_errors() -> Iterator[SettingsError]:
    """An error for each option that can't be read, and for an engine that can't be loaded."""
    for read in (configured_engine, metrics_token, configured_prices, _preload, *_readers().values()):
        try:
            read()
        except SettingsError as error:
            yield error
        except RegistryError as error:
            yield SettingsError(error.asked, found=error.found, remedy=error.remedy)


def _readers() -> dict[str, Callable[[], Any]]:
    """Field of `Configuration` → what reads it."""
    return {
        "policy": _policy,
        "pool": partial(_text, "pool"),
        "queue": partial(_text, "queue"),
        "lease_timeout_s": partial(_positive, "lease_timeout_s"),
        "discovery_interval_s": partial(_positive, "discovery_interval_s"),
        "probe_timeout_s": partial(_positive, "probe_timeout_s"),
        "worker_timeout_s": partial(_positive, "worker_timeout_s"),
        "forget_workers_after_s": partial(_duration_s, "forget_workers_after", least_s=60.0),
        "history_days": partial(_positive, "history_days"),
        "grace_s": partial(_positive, "grace_s"),
        "min_run_s": partial(_positive, "min_run_s"),
        "preempt_within_class": partial(_yes_or_no, "preempt_within_class"),
        "patience": partial(_yes_or_no, "patience"),
        "labels": lambda: parse_labels(_text("labels"), f"[{SECTION}] labels"),
        "rules": lambda: parse_rules(_text("recovery_rules")),
        "shares": configured_shares,
        "allowed_processes": lambda: parse_processes(_text("allowed_device_processes")),
        "exclude_devices": partial(_text, "exclude_devices"),
        "site_links": lambda: parse_site_links(_text("site_links"), f"[{SECTION}] site_links"),
        "spot_notices": _spot_notices,
        "wait_for_hardware_s": partial(_duration_or_zero_s, "wait_for_hardware"),
        "hang_timeout_s": partial(_positive, "hang_timeout_s"),
    }


def _text(name: str) -> str:
    return str(options().get(SECTION, name, fallback=default(name))).strip() or default(name)


def _policy() -> str:
    name = _text("policy")
    policy_names = names(policies.GROUP, policies.POLICIES)
    if name not in policy_names:
        raise SettingsError(
            f"[{SECTION}] policy = {name}",
            found="no such policy",
            remedy=f"{did_you_mean(name, policy_names)}Use one of {', '.join(policy_names)}",
        )
    return name


def configured_shares() -> TeamShares:
    """The teams; none if none are set.

    :raises SettingsError: the option can't be read
    """
    return TeamShares.parse(_text("shares"), f"[{SECTION}] shares")


def configured_prices() -> Prices:
    """The prices of device-hours; none if none are set.

    :raises SettingsError: the option can't be read
    """
    return Prices.parse(_text("prices"), f"[{SECTION}] prices")


def _preload() -> tuple[str, ...]:
    return parse_preload(_text("preload"))


def _spot_notices() -> str:
    text = _text("spot_notices")
    check_notice_setting(text, f"[{SECTION}] spot_notices")
    return text


def _positive(name: str) -> float:
    text = _text(name)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        option = f"[{SECTION}] {name} = {shorten(text)}"
        raise SettingsError(option, found="no positive number", remedy="Write a number, such as 60")
    return value


def _yes_or_no(name: str) -> bool:
    text = _text(name)
    value = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}.get(text.lower())
    if value is None:
        raise SettingsError(
            f"[{SECTION}] {name} = {shorten(text)}", found="neither yes nor no", remedy="Write yes or no"
        )
    return value


def _duration_s(name: str, *, least_s: float) -> float:
    """Seconds from a text such as 12h.

    :raises SettingsError: the text is no duration, or is too short
    """
    text = _text(name)
    option = f"[{SECTION}] {name} = {shorten(text)}"
    remedy = f"Write a duration of at least {least_s:g} s and at most 366d, such as 12h or 7d"
    try:
        duration_s = parse_duration_s(text, name)
    except RequestError as error:
        raise SettingsError(option, found=error.found, remedy=remedy) from None
    if duration_s < least_s:
        raise SettingsError(option, found=f"{duration_s:g} s", remedy=remedy)
    return duration_s


def _duration_or_zero_s(name: str) -> float:
    return 0.0 if _text(name) == "0" else _duration_s(name, least_s=1.0)


def configured_engine() -> Any:
    """The class of the engine that ``[hetero] engine`` names.

    :raises SettingsError: there is no such engine
    """
    name = _text("engine")
    if name not in (engine_names := names(engines.GROUP, engines.ENGINES)):
        remedy = f"{did_you_mean(name, engine_names)}Use one of {', '.join(engine_names)}"
        raise SettingsError(f"[{SECTION}] engine = {name}", found="no such engine", remedy=remedy)
    return load(engines.GROUP, engines.ENGINES, name)


class EngineTrait:
    """A class attribute of the executor with the value in the configured engine's `EngineTraits`.

    Airflow reads such attributes before it makes an executor.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> bool:
        return bool(getattr(configured_engine().traits, self._name))
