"""The section [hetero] of Airflow's configuration, read once when the executor starts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
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


def _duration_s(name: str, least_s: float) -> float:
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


def engine_name() -> str:
    """What ``[hetero] engine`` names. A worker takes tasks if it reports the same."""
    return _text("engine")


def configured_engine() -> Any:
    """The class of the engine that ``[hetero] engine`` names.

    :raises SettingsError: there is no such engine
    """
    name = engine_name()
    if name not in (engine_names := names(engines.GROUP, engines.ENGINES)):
        remedy = f"{did_you_mean(name, engine_names)}Use one of {', '.join(engine_names)}"
        raise SettingsError(f"[{SECTION}] engine = {name}", found="no such engine", remedy=remedy)
    return load(engines.GROUP, engines.ENGINES, name)


def _read_by(read: Callable[..., Any], *arguments: object) -> dict[str, Any]:
    """The metadata of a field that this function reads from its option."""
    return {"read": partial(read, *arguments)}


@dataclass(frozen=True, slots=True)
class Configuration:
    """The parsed options of `hetero_airflow.settings.OPTIONS`."""

    policy: str = field(metadata=_read_by(_policy))
    pool: str = field(metadata=_read_by(_text, "pool"))
    queue: str = field(metadata=_read_by(_text, "queue"))
    lease_timeout_s: float = field(metadata=_read_by(_positive, "lease_timeout_s"))
    discovery_interval_s: float = field(metadata=_read_by(_positive, "discovery_interval_s"))
    probe_timeout_s: float = field(metadata=_read_by(_positive, "probe_timeout_s"))
    worker_timeout_s: float = field(metadata=_read_by(_positive, "worker_timeout_s"))
    forget_workers_after_s: float = field(metadata=_read_by(_duration_s, "forget_workers_after", 60.0))
    history_days: float = field(metadata=_read_by(_positive, "history_days"))
    grace_s: float = field(metadata=_read_by(_positive, "grace_s"))
    min_run_s: float = field(metadata=_read_by(_positive, "min_run_s"))
    labels: dict[str, str] = field(metadata=_read_by(lambda: parse_labels(_text("labels"), f"[{SECTION}] labels")))
    worker_id: str = field(metadata=_read_by(host_name))
    shares: TeamShares = field(default=NO_TEAM_SHARES, metadata=_read_by(configured_shares))
    rules: Rules = field(default=DEFAULTS, metadata=_read_by(lambda: parse_rules(_text("recovery_rules"))))
    site_links: Mapping[str, float] = field(
        default_factory=dict,
        metadata=_read_by(lambda: parse_site_links(_text("site_links"), f"[{SECTION}] site_links")),
    )
    allowed_processes: frozenset[str] = field(
        default=frozenset(), metadata=_read_by(lambda: parse_processes(_text("allowed_device_processes")))
    )
    exclude_devices: str = field(default="", metadata=_read_by(_text, "exclude_devices"))
    spot_notices: str = field(default="", metadata=_read_by(_spot_notices))
    preempt_within_class: bool = field(default=True, metadata=_read_by(_yes_or_no, "preempt_within_class"))
    patience: bool = field(default=True, metadata=_read_by(_yes_or_no, "patience"))
    wait_for_hardware_s: float = field(
        default=0.0,
        metadata=_read_by(lambda: 0.0 if _text("wait_for_hardware") == "0" else _duration_s("wait_for_hardware", 1.0)),
    )
    hang_timeout_s: float = field(default=900.0, metadata=_read_by(_positive, "hang_timeout_s"))
    """Only the supervisors of tasks use it; the scheduler refuses a wrong value before they meet it."""
    data_ahead: bool = field(default=True, metadata=_read_by(_yes_or_no, "data_ahead"))
    """Only tasks use it."""


def read_configuration() -> Configuration:
    """Read all options.

    :raises SettingsError: an option can't be read
    """
    return Configuration(**{option.name: option.metadata["read"]() for option in fields(Configuration)})


def option_errors() -> Iterator[SettingsError]:
    """An error for each option that can't be read, and for an engine that can't be loaded."""
    readers = (option.metadata["read"] for option in fields(Configuration))
    for read in (configured_engine, metrics_token, configured_prices, _preload, *readers):
        try:
            read()
        except SettingsError as error:
            yield error
        except RegistryError as error:
            yield SettingsError(error.asked, found=error.found, remedy=error.remedy)


class EngineTrait:
    """A class attribute of the executor with the value in the configured engine's `EngineTraits`.

    Airflow reads such attributes before it makes an executor.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> bool:
        return bool(getattr(configured_engine().traits, self._name))
