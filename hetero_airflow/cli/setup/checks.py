"""``airflow hetero config --check``: what an installation lacks, and what that costs. Pure."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from sqlalchemy import URL

from hetero_airflow.checkpoints.opening import check_url
from hetero_airflow.cli.output import cell
from hetero_airflow.contract.executor_names import (
    COORDINATOR_CLASSPATH,
    COORDINATOR_NAME,
    EXECUTOR_CLASSPATH,
    hetero_executor_name,
)
from hetero_airflow.discovery import simulated
from hetero_airflow.errors import ProbeError, SettingsError, as_sentence
from hetero_airflow.executor.explanation.device_text import count
from hetero_airflow.executor.recommended_settings import Recommendation, recommendations
from hetero_airflow.model.device import UNCOVERED_KEY
from hetero_airflow.model.problem_lines import is_of_discovery
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import WorkerState
from hetero_airflow.settings import OPTIONS, SECTION, SIMULATED_DEVICES_VARIABLE, default
from hetero_airflow.validation import did_you_mean

ReadOption = Callable[[str, str], str | None]
"""(section, option) → the installation's value, or None."""

_REPLACEABLE = frozenset({"", "LocalExecutor"})
"""Executors that HeteroExecutor can replace. Any other stays first in the list, as the default."""

_NEEDED = frozenset({"core", "sdk"})
"""The sections without whose settings devices are shared, or bound too late."""

_AT_LEAST = frozenset(
    {
        "execution_api_retries",
        "jwt_expiration_time",
        "max_failed_heartbeats",
        "task_queued_timeout",
        "worker_pods_creation_batch_size",
    }
)
"""Options for which a larger value is as good. For all other numbers a smaller one is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A recommendation with the installation's value, and the value to set, which is the same if that is as good."""

    recommendation: Recommendation
    current: str | None
    wanted: str

    @property
    def is_ok(self) -> bool:
        """Whether there is nothing to do."""
        return self.current == self.wanted


def recommended_settings(queue: str, read: ReadOption, engine: str = "local") -> tuple[Setting, ...]:
    """Each recommended setting. Additions of the installation, such as other coordinators, stay in the value."""
    coordinated = uses_our_coordinator(queue, read)
    return tuple(
        Setting(
            recommendation,
            current := read(recommendation.section, recommendation.option),
            _wanted(recommendation, current, coordinated),
        )
        for recommendation in recommendations(queue, engine)
    )


def uses_our_coordinator(queue: str, read: ReadOption) -> bool:
    """Whether tasks of the queue go through our coordinator, under any name."""
    coordinators = _json_object(read("sdk", "coordinators"))
    queues = _json_object(read("sdk", "queue_to_coordinator"))
    entry = (coordinators or {}).get(str((queues or {}).get(queue)))
    return isinstance(entry, Mapping) and entry.get("classpath") == COORDINATOR_CLASSPATH


def _wanted(recommendation: Recommendation, current: str | None, coordinated: bool) -> str:
    value = recommendation.value
    if recommendation.section == "sdk":
        if coordinated and current is not None:
            return current
        existing = _json_object(current) or {}
        ours = json.loads(value)
        merged = {**ours, **existing} if _has_our_coordinator(existing) else {**existing, **ours}
        return str(current) if merged == existing else json.dumps(merged)
    if recommendation.option == "executor":
        if hetero_executor_name(current or "") is not None:
            return str(current)
        of_all, *of_teams = (current or "").split(";")
        others = [team for team in of_teams if EXECUTOR_CLASSPATH not in team]  # Airflow refuses it there
        return ";".join([value if of_all in _REPLACEABLE else f"{of_all},{value}", *others])
    number = _number(current)
    if recommendation.option in _AT_LEAST:
        return str(current) if number >= float(value) else value
    # All others are intervals, where a shorter one is as good, or -1 for no limit.
    return str(current) if 0 < number <= float(value) else value


def _has_our_coordinator(coordinators: Mapping[str, Any]) -> bool:
    entry = coordinators.get(COORDINATOR_NAME)
    return isinstance(entry, Mapping) and entry.get("classpath") == COORDINATOR_CLASSPATH


def _number(text: str | None) -> float:
    """The number, or 0 if the text is not a number."""
    try:
        return float(text or "")
    except ValueError:
        return 0.0


def _json_object(text: str | None) -> dict[str, Any] | None:
    """The JSON object, or None if the text is not one."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


_MIN_HEARTBEATS = 3
"""The least number of heartbeats in the timeout; it is Airflow's `max_failed_heartbeats`."""

_NAMES = frozenset(option.name for option in OPTIONS)
_SUFFIXES = ("_cmd", "_secret")
"""Airflow reads such an option in place of the one without it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; if it failed, what to do and what happens otherwise."""

    subject: str
    found: str
    remedy: str = ""
    cost: str = ""
    is_advice: bool = False
    """Device tasks run well without it; what it prevents costs time in a rare case."""

    @property
    def is_ok(self) -> bool:
        """Whether there is nothing to do."""
        return not self.remedy


def check_settings(settings: Iterable[Setting]) -> Iterator[Finding]:
    """A finding for each recommended setting."""
    for setting in settings:
        subject = f"[{setting.recommendation.section}] {setting.recommendation.option}"
        found = setting.current or "not set"
        if setting.is_ok:
            yield Finding(subject, found)
        else:
            remedy = f"Set it to {setting.wanted}{_beside(setting)}"
            is_advice = setting.recommendation.section not in _NEEDED
            yield Finding(subject, found, remedy, setting.recommendation.cost, is_advice)


def _beside(setting: Setting) -> str:
    """The value that leaves tasks without a device request to the executor that they have now, if that is another."""
    if setting.recommendation.option != "executor" or not setting.current or "," in setting.wanted:
        return ""
    return f", or to {setting.current},{setting.wanted} so that plain tasks stay where they are"


def check_heartbeats(read: ReadOption) -> Iterator[Finding]:
    """A finding if the heartbeat timeout is too short for the interval; else none."""
    interval, timeout = read("workers", "min_heartbeat_interval"), read("scheduler", "task_instance_heartbeat_timeout")
    try:
        shortest_s = _MIN_HEARTBEATS * float(interval or "")
        is_short = float(timeout or "") < shortest_s
    except ValueError:
        return
    if is_short:
        yield Finding(
            "heartbeats in [scheduler] task_instance_heartbeat_timeout",
            f"one heartbeat each {interval} s, with a timeout of {timeout} s",
            f"Set the timeout to {shortest_s:g} or more",
            "Airflow takes running tasks for dead and runs them again",
        )


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


def check_checkpoints(engine: str, url: str) -> Iterator[Finding]:
    """A finding on the place of checkpoints: whether it can be read, and whether all hosts of the engine share it."""
    subject = f"[{SECTION}] checkpoint_url"
    try:
        scheme = check_url(url).scheme if url else ""
    except SettingsError as error:
        yield Finding(subject, error.found, error.remedy, "device tasks fail when they start")
    else:
        if engine == default("engine"):
            return
        if not scheme:
            yield Finding(
                subject,
                "not set: the folder checkpoints in AIRFLOW_HOME of each host",
                "Set it to s3://bucket/prefix or file:///shared/folder, on every host",
                "a task that continues on another host starts at step 0, and only a higher priority can preempt it",
            )
        else:
            yield Finding(subject, f"{url}; all hosts must share this folder" if scheme == "file" else url)


def check_driver(url: URL) -> Finding:
    """Whether the store supports the database and its driver; the finding has no secret of the URL."""
    subject = "[database] sql_alchemy_conn"
    if url.get_backend_name() == "sqlite":
        return Finding(subject, "SQLite, which supports only one scheduler")
    if url.get_backend_name() != "postgresql":
        remedy = "Use postgresql+psycopg2:// or SQLite"
        return Finding(subject, url.drivername, remedy, "leases are tested to be exclusive on these two only")
    if "+" not in url.drivername:
        cost = "SQLAlchemy 2.1 reads it as psycopg 3, other versions as psycopg2"
        return Finding(subject, f"{url.drivername}://", "Write postgresql+psycopg2://", cost)
    return Finding(subject, url.drivername)


def check_pool(name: str, slots: int | None) -> Finding:
    """Whether the pool of device tasks exists and has slots.

    :param slots: None if there is no such pool, -1 for no limit
    """
    subject = f"pool {name}"
    cost = "Airflow queues no device task"
    if slots is None:
        return Finding(subject, "no such pool", "Start the scheduler once with HeteroExecutor, which creates it", cost)
    if slots == 0:
        return Finding(subject, "0 slots", "Set its slots to -1, no limit", cost)
    limited = f"{slots} slots: at most this number of device tasks waits or runs at a time"
    return Finding(subject, "no limit" if slots < 0 else limited)


def check_parallelism(value: str | None, snapshot: Snapshot | None, engine: str) -> Finding:
    """Whether all accelerators that the engine can use can be in use at the same time."""
    subject = "[core] parallelism"
    try:
        parallelism = int(value or "")
    except ValueError:
        parallelism = 0
    if parallelism <= 0:
        return Finding(subject, str(value), "Set it to a number above 0", "no executor starts")
    workers = [worker for worker in (snapshot.workers if snapshot else ()) if worker.engine == engine]
    online = [worker for worker in workers if worker.state is WorkerState.ONLINE]
    if not online:
        return Finding(subject, f"{parallelism}; no worker has reported its devices yet")
    accelerators = sum(device.leasable and device.kind != "cpu" for worker in online for device in worker.devices)
    found = f"{parallelism}, for {count(accelerators, 'accelerator')}"
    if parallelism < accelerators:
        cost = f"only {count(parallelism, 'task')} can run at a time, and other devices stay idle"
        return Finding(subject, found, f"Set it to {accelerators} or more", cost)
    return Finding(subject, found)


def check_engines(engine: str, snapshot: Snapshot) -> Iterator[Finding]:
    """A finding if workers are online to which the configured engine sends nothing."""
    others = [w for w in snapshot.workers if w.state is WorkerState.ONLINE and w.engine != engine]
    if others:
        names = ", ".join(f"{worker.id} ({worker.engine})" for worker in others[:3])
        more = f" and {len(others) - 3} more" if others[3:] else ""
        remedy = f"Set it to {others[0].engine}, or end the agents there"
        yield Finding("[hetero] engine", f"{engine}; online: {names}{more}", remedy, "these workers get no task")


def check_device_users(snapshot: Snapshot) -> Iterator[Finding]:
    """A finding if there are accelerators: whether their hosts can see which processes use them."""
    devices = [
        (worker, device)
        for worker in snapshot.workers
        for device in worker.devices
        if worker.state is WorkerState.ONLINE and device.kind != "cpu" and not device.simulated
    ]
    uncovered = [f"{worker.id}/{device.id}" for worker, device in devices if device.details.get(UNCOVERED_KEY)]
    subject = "users of devices"
    if uncovered:
        more = f" and {len(uncovered) - 3} more" if uncovered[3:] else ""
        remedy = "Let the worker's service create control groups (Delegate=yes), or run it where it sees all processes"
        cost = "a process that another service started for a task can use the device beside the next task"
        yield Finding(subject, f"not covered: {', '.join(uncovered[:3])}{more}", remedy, cost)
    elif devices:
        yield Finding(subject, f"seen on {count(len(devices), 'accelerator')}")


def check_problems(snapshot: Snapshot) -> Iterator[Finding]:
    """A finding for each problem line of a worker's last discovery."""
    for worker in snapshot.workers:
        for line in worker.problems if worker.state is WorkerState.ONLINE else ():
            if is_of_discovery(line):
                cost = "devices of this worker may be missing, or get no task"
                yield Finding(f"devices of worker {worker.id}", line, "Do what the line says", cost)


def check_report(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """A line for each finding; below each failed check, what to do and what happens otherwise."""
    for finding in findings:
        mark, style = ("advice", "bold yellow") if finding.is_advice else ("to do", "bold red")
        mark, style = ("ok", "green") if finding.is_ok else (mark, style)
        yield cell(f"{mark:<7}", style=style) + cell(f"{finding.subject}: {finding.found}")
        if not finding.is_ok:
            yield cell(f"       {as_sentence(finding.remedy)}")
        if finding.cost:
            yield cell(f"       Without it, {finding.cost}.")
    lacking = [finding.is_advice for finding in findings if not finding.is_ok]
    advice = f" Advice: {sum(lacking)}." if any(lacking) else ""
    to_do = f"To do: {lacking.count(False)} of {len(findings)}.{advice}"
    yield cell(to_do if lacking else "All is well.", style="bold")
