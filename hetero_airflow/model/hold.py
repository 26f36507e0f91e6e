"""Holds: why a device or a worker gets no new task although its probe reports no problem."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from hetero_airflow.model.device import Device
from hetero_airflow.model.worker import Worker


class HoldKind(StrEnum):
    """Who placed a hold. A device can have one hold of each kind at the same time."""

    DRAINED = "drained"
    """A person. It ends when a person lifts it."""
    QUARANTINED = "quarantined"
    """The device's health, after errors. It ends when a burn-in computation passes or a person lifts it."""
    LEAVING = "leaving"
    """The worker's agent, which is stopping and waits for its tasks. It ends when an agent starts there again."""
    RECLAIMED = "reclaimed"
    """The provider of a spot machine, which takes the machine back. It ends when there is no notice any more."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a device, or a whole worker, gets no new task. Its current leases continue.

    >>> from hetero_airflow.testing import EPOCH
    >>> print(Hold("worker-a", "GPU-0", HoldKind.DRAINED, "new fan", EPOCH, "a person undrains it"))
    drained since 2026-01-01 00:00:00 UTC: new fan; back when a person undrains it
    """

    worker_id: str
    device_id: str
    """Empty: the whole worker. A hold on a GPU in MIG mode is also one on its instances."""
    kind: HoldKind
    cause: str
    since: datetime
    returns: str
    """What ends the hold; a text that follows "back when"."""
    until: datetime | None = None
    """The hold does not end by itself before this time; None where no time is known."""
    moves: bool = False
    """Whether tasks that run there save their work and continue elsewhere. Otherwise they may finish."""

    def __str__(self) -> str:
        since = f"{self.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.kind} since {since}: {self.cause}; back when {self.returns}"


def reclaimed_hold(worker_id: str, cause: str, since: datetime) -> Hold:
    """The hold on a worker whose machine is taken back: its tasks save and move."""
    returns = "its machine has no notice of its provider any more"
    return Hold(worker_id, "", HoldKind.RECLAIMED, cause, since, returns, moves=True)


def holds_on(device: Device, holds: Iterable[Hold]) -> tuple[Hold, ...]:
    """Those of a worker's holds that apply to the device: on itself, on its parent, and on the whole worker."""
    return tuple(hold for hold in holds if hold.device_id in ("", device.id, device.parent))


def with_holds(worker: Worker, holds: Iterable[Hold]) -> Worker:
    """The worker with its holds applied: a held device is not leasable, and its `problem` gives the reason.

    >>> from hetero_airflow.testing import EPOCH, a_worker
    >>> hold = Hold("worker-a", "GPU-1", HoldKind.DRAINED, "new fan", EPOCH, "a person undrains it")
    >>> [device.id for device in with_holds(a_worker(), [hold]).devices if device.leasable]
    ['cpu', 'GPU-0']
    """
    all_holds = tuple(holds)
    if not all_holds:
        return worker
    texts = [(device, ". ".join(map(str, holds_on(device, all_holds)))) for device in worker.devices]
    devices = tuple(device.not_leasable(text) if text else device for device, text in texts)
    return worker.model_copy(update={"devices": devices})
