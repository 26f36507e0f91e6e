"""``airflow hetero config --check``: options and variables that nothing reads, or that can't be read. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from hetero_airflow.cli.setup.checks import Finding
from hetero_airflow.discovery import simulated
from hetero_airflow.errors import ProbeError, SettingsError
from hetero_airflow.settings import OPTIONS, SECTION, SIMULATED_DEVICES_VARIABLE
from hetero_airflow.validation import did_you_mean

_NAMES = frozenset(option.name for option in OPTIONS)
_SUFFIXES = ("_cmd", "_secret")
"""Airflow reads such an option in place of the one without it."""


def check_option_names(names: Iterable[str]) -> Iterator[Finding]:
    """A finding for each option of the section that this package does not have.

    >>> [finding.remedy for finding in check_option_names(["policy", "polcy"])]
    ['Did you mean "policy"? Correct its name or remove it']
    """
    for name in sorted(names):
        if name not in _NAMES and not any(name.removesuffix(suffix) in _NAMES for suffix in _SUFFIXES):
            remedy = f"{did_you_mean(name, _NAMES)}Correct its name or remove it"
            yield Finding(
                f"[{SECTION}] {name}", "an unknown option", remedy, "the option that is meant keeps its default"
            )


def check_options(errors: Iterable[SettingsError]) -> Iterator[Finding]:
    """A finding for each option whose value can't be read; one that all is well if there is none."""
    is_readable = True
    for error in errors:
        is_readable = False
        yield Finding(error.asked, f"found {error.found}", error.remedy, "the scheduler does not start")
    if is_readable:
        yield Finding(f"section [{SECTION}]", "readable")


def check_simulated_devices(environment: Mapping[str, str]) -> Iterator[Finding]:
    """A finding if simulated devices are asked for."""
    text = environment.get(SIMULATED_DEVICES_VARIABLE, "")
    if not text.strip():
        return
    try:
        devices = simulated.parse(text).devices
    except ProbeError as error:
        cost = "this host has no simulated device"
        yield Finding(SIMULATED_DEVICES_VARIABLE, f"found {error.found}", error.remedy, cost)
    else:
        yield Finding(SIMULATED_DEVICES_VARIABLE, f"{len(devices)} simulated devices")
