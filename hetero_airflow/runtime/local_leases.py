"""Leases of local runs: on this machine's devices, without a scheduler. For notebooks, laptops and `dag.test()`.

Discovery, matching and policy are those of the scheduler. In place of the database, the lease files of this host say
what is taken: those of other local runs, of an executor and of an agent (`engines.host.held_devices`). A local run
writes one too. The file of a process that was killed counts no more, once no process of the lease is left.
"""

import atexit
import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import TracebackType
from typing import Any, Self, Unpack

from hetero_airflow.contract.task_lease import LOCAL_RUN, TaskLease, checked_devices, lease_claims, task_lease
from hetero_airflow.discovery.device_users import current_users
from hetero_airflow.discovery.discover import discover
from hetero_airflow.discovery.used_devices import foreign_users, parse_processes, without_used
from hetero_airflow.engines.host.cgroups import covered, create_group
from hetero_airflow.engines.host.held_devices import (
    HeldDevices,
    held_devices,
    live_lease_files,
    remove_ended_local_runs,
)
from hetero_airflow.engines.host.lease_files import LeaseFileWriter, current_leases, recorded_lease
from hetero_airflow.engines.host.lease_folders import local_runs_locked
from hetero_airflow.errors import DeviceUnavailable, NoLeaseError
from hetero_airflow.model.arguments import DeviceArgument, RequestConditions
from hetero_airflow.model.lease import Claim
from hetero_airflow.model.plan import Decision, Place, Refuse, Wait
from hetero_airflow.model.request import DeviceRequest
from hetero_airflow.model.snapshot import DeviceUsage, PendingRequest, Snapshot
from hetero_airflow.model.worker import Inventory, Worker, parse_labels
from hetero_airflow.policies import load_policy
from hetero_airflow.runtime.visible_devices import bound_to_lease
from hetero_airflow.settings import LEASE_VARIABLE, SECTION, SIMULATED_DEVICES_VARIABLE, default
from hetero_airflow.store.lease_rules import choose_cores, granted_lease
from hetero_airflow.units import MILLI_PER_DEVICE

log = logging.getLogger(__name__)

_POLL_S = 1.0

_DISCOVERY_INTERVAL_S = float(default("discovery_interval_s"))

_LEASE_TIME = timedelta(days=1)
"""The lease needs an end, which nobody reads: the process that holds it decides."""


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """The options of [hetero] that a local run uses. The defaults hold outside of Airflow."""

    policy: str = default("policy")
    labels: Mapping[str, str] = field(default_factory=dict)
    allowed_processes: str = default("allowed_device_processes")
    exclude_devices: str = default("exclude_devices")

    @classmethod
    def configured(cls, conf: Any) -> Self:
        """The options as configured on this host.

        :param conf: Airflow's configuration
        :raises SettingsError: one of them can't be read
        """

        def text(name: str) -> str:
            return str(conf.get(SECTION, name, fallback=default(name))).strip() or default(name)

        labels = parse_labels(text("labels"), f"[{SECTION}] labels")
        return cls(text("policy"), labels, text("allowed_device_processes"), text("exclude_devices"))


DEFAULT_SETTINGS = LocalSettings()


class LocalLease:
    """A lease that this process holds until `release`, the end of a ``with`` block, or its end.

    >>> with local_lease("cpu") as lease:
    ...     print(lease.count, lease.is_local_run)
    1 True
    """

    def __init__(self, request: DeviceRequest) -> None:
        if LEASE_VARIABLE in os.environ:
            raise NoLeaseError(
                f"a local lease of {request}",
                found="a lease that this process has already",
                remedy="Use current_lease(), or release the first one: a framework can't change its devices",
            )
        _check_unbound(request)
        self._process = os.getpid()
        self._stack = ExitStack()
        self.lease, _ = self._stack.enter_context(leased_here(request, f"process {os.getpid()}", log.warning))
        self._stack.enter_context(bound_to_lease(self.lease))
        atexit.register(self.release)

    def release(self) -> None:
        """Give the devices back. A second call does nothing, and neither does one in a fork of this process."""
        if os.getpid() != self._process:
            return
        self._stack.close()
        atexit.unregister(self.release)

    def __enter__(self) -> TaskLease:
        return self.lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __str__(self) -> str:
        return str(self.lease)


def local_lease(device: DeviceArgument, **conditions: Unpack[RequestConditions]) -> LocalLease:
    """Lease devices of this machine for this process, outside of Airflow. Blocks until they are free.

    Call it before a framework uses a device. The arguments are those of a device task. In a notebook, keep the result,
    and call its `release` at the end; in a program, use ``with``.

    :raises RequestError: the arguments are no valid request
    :raises DeviceUnavailable: this machine does not have such devices, or `wait_timeout` is over
    :raises NoLeaseError: this process has a lease, or a framework has bound its devices already
    """
    return LocalLease(DeviceRequest.parse(device, **conditions))


@contextmanager
def leased_here(
    request: DeviceRequest, local_run: str, note: Callable[[str], object], settings: LocalSettings = DEFAULT_SETTINGS
) -> Iterator[tuple[TaskLease, LeaseFileWriter]]:
    """Within the context a local run holds devices: its lease, and the lease file. Blocks until they are free.

    :param local_run: what runs, for other people on this machine
    :param note: gets a line when the task waits, and when the reason changes
    :raises DeviceUnavailable: this machine does not have such devices, or the request's time to wait is over
    """
    since, last_line = time.monotonic(), ""
    with ExitStack() as stack:
        while True:
            remove_ended_local_runs()
            with local_runs_locked():
                lease, decision, held = _decide(request, settings)
                if lease is not None:
                    claims = lease_claims(lease)
                    record = recorded_lease(
                        lease.id,
                        lease.worker,
                        checked_devices(lease),
                        create_group,
                        claims=claims,
                        local_run=local_run,
                    )
                    writer = stack.enter_context(record)
                    if _others(lease.id).has_room_for(claims):
                        break
                    stack.close()  # a task has begun on these devices at the same moment
            line = _wait_line(request, decision, held)
            if request.wait_timeout_s is not None and time.monotonic() - since >= request.wait_timeout_s:
                raise DeviceUnavailable(
                    f"{request} within {request.wait_timeout_s:g} s", found=line, remedy="Wait longer, or free a device"
                )
            if line != last_line:
                note(f"Local run: waiting for {request}. {line}")
                last_line = line
            time.sleep(_POLL_S)
        yield lease, writer


def decide_here(request: DeviceRequest, settings: LocalSettings = DEFAULT_SETTINGS) -> Decision:
    """What the policy would decide on the request now, on this machine. Takes nothing."""
    return _decide(request, settings)[1]


def _decide(request: DeviceRequest, settings: LocalSettings) -> tuple[TaskLease | None, Decision, HeldDevices]:
    """The lease that the policy gives the request now, if it gives one, its decision, and what others hold.

    :raises DeviceUnavailable: this machine can never satisfy the request
    """
    now, worker, held = datetime.now(UTC), local_worker(settings), held_devices(live_lease_files())
    pending = PendingRequest(f"local-{uuid.uuid4()}", request, now)
    snapshot = Snapshot(0, (worker,), _usage(worker, held), (pending,))
    decision = load_policy(settings.policy).decide(snapshot, now).decisions[0]
    if isinstance(decision, Refuse):
        raise DeviceUnavailable(
            f"{request} on {worker.id}", found=f"no such device ({decision.reason})", remedy=decision.nearest
        )
    if not isinstance(decision, Place):
        return None, decision, held
    claims = tuple(_with_cores(claim, worker, held) for claim in decision.claims)
    token = time.time_ns() // 1000  # greater than that of every earlier local run
    lease = granted_lease(decision, claims, token, now, now + _LEASE_TIME)
    return task_lease(lease, worker, request.alternatives[decision.alternative]), decision, held


def local_worker(settings: LocalSettings = DEFAULT_SETTINGS) -> Worker:
    """This machine as a worker: what discovery finds, without the devices that processes outside of all leases use.

    Discovery runs again after a minute. Who uses the devices is looked up each time.
    """
    period = int(time.monotonic() / _DISCOVERY_INTERVAL_S)
    simulated = os.environ.get(SIMULATED_DEVICES_VARIABLE, "")
    inventory = _inventory(tuple(sorted(settings.labels.items())), settings.exclude_devices, simulated, period)
    users = current_users(inventory)
    if not users:
        return covered(inventory.worker)
    leases = current_leases()
    allowed = parse_processes(settings.allowed_processes)
    foreign = foreign_users(users, lambda user: user.pid == os.getpid() or leases.include(user), allowed)
    return without_used(covered(inventory.worker), foreign)


@lru_cache(maxsize=1)
def _inventory(labels: tuple[tuple[str, str], ...], exclude: str, simulated: str, period: int) -> Inventory:
    return discover(f"{socket.gethostname()}{LOCAL_RUN}", labels=dict(labels), exclude=exclude)


def _usage(worker: Worker, held: HeldDevices) -> dict[tuple[str, str], DeviceUsage]:
    usage = {(worker.id, device_id): used for device_id, used in held.usage.items()}
    cpu = worker.cpu
    if cpu is not None:
        used = usage.get((worker.id, cpu.id), DeviceUsage())
        milli = MILLI_PER_DEVICE * len(held.cores.intersection(cpu.cores))
        usage[worker.id, cpu.id] = replace(used, share_milli=milli)
    return usage


def _with_cores(claim: Claim, worker: Worker, held: HeldDevices) -> Claim:
    """A claim with its cores: the last free ones. A scheduler that does not know of this run takes the first ones."""
    cpu = worker.cpu
    if cpu is None or claim.device_id != cpu.id:
        return claim
    cores = choose_cores(cpu.cores[::-1], held.cores, claim.share_milli // MILLI_PER_DEVICE)
    return replace(claim, cores=cores or ())


def _others(lease_id: str) -> HeldDevices:
    return held_devices(file for file in live_lease_files() if file.lease != lease_id)


def _wait_line(request: DeviceRequest, decision: Decision, held: HeldDevices) -> str:
    reason = f"{decision.reason}." if isinstance(decision, Wait) else "A task has just begun on the chosen devices."
    holders = sorted({holder for texts in held.holders.values() for holder in texts})
    return f"{reason} Devices are held by {', '.join(holders)}." if holders else reason


def _check_unbound(request: DeviceRequest) -> None:
    """See that torch has not bound this process to devices: it would not see those of the lease.

    :raises NoLeaseError: it has
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise NoLeaseError(
            f"a local lease of {request}",
            found="that torch uses devices in this process already",
            remedy="Take the lease first: restart the notebook's kernel or the program",
        )
