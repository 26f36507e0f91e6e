"""What keeps a device from being leased although its probe sees nothing wrong with it: a person, or its past errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from hetero_airflow.model.device import Device
from hetero_airflow.model.worker import Worker

_MAX_PROBLEM = 500


class HoldKind(StrEnum):
    """Whose word bars a device; one bar of each kind may stand at the same time."""

    DRAINED = "drained"
    """A person's: until a person takes it back."""
    QUARANTINED = "quarantined"
    """Its health's: after errors, until a burn-in computation has passed or a person takes it back."""
    LEAVING = "leaving"
    """Its own agent's: it was told to stop, and waits for the tasks there; until an agent starts there again."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a device, or a whole worker, gets no new task. Leases that it has go on.

    >>> from hetero_airflow.testing import EPOCH
    >>> print(Hold("worker-a", "GPU-0", HoldKind.DRAINED, "new fan", EPOCH, "a person undrains it"))
    drained since 2026-01-01 00:00:00 UTC: new fan; back when a person undrains it
    """

    worker_id: str
    device_id: str
    """Empty: the whole worker. A GPU in MIG mode stands for its instances too."""
    kind: HoldKind
    cause: str
    since: datetime
    returns: str
    """What brings it back, to be read after "back when"."""
    until: datetime | None = None
    """Before that, it does not come back by itself; None where no time is known."""
    moves: bool = False
    """Whether the tasks that run there shall save and go on elsewhere; otherwise they may finish."""

    def __str__(self) -> str:
        since = f"{self.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.kind} since {since}: {self.cause}; back when {self.returns}"


def holds_on(device: Device, bars: Iterable[Hold]) -> tuple[Hold, ...]:
    """Those of a worker's bars that hold for the device: its own, its parent's, and the whole worker's."""
    return tuple(bar for bar in bars if bar.device_id in ("", device.id, device.parent))


def with_holds(worker: Worker, bars: Iterable[Hold]) -> Worker:
    """The worker with those of its bars applied: barred devices are not leasable, and say so in their `problem`.

    >>> from hetero_airflow.testing import EPOCH, a_worker
    >>> bar = Hold("worker-a", "GPU-1", HoldKind.DRAINED, "new fan", EPOCH, "a person undrains it")
    >>> [device.id for device in with_holds(a_worker(), [bar]).devices if device.leasable]
    ['cpu', 'GPU-0']
    """
    own = tuple(bars)
    if not own:
        return worker
    return worker.model_copy(
        update={"devices": tuple(_with_device_holds(device, holds_on(device, own)) for device in worker.devices)}
    )


def _with_device_holds(device: Device, bars: tuple[Hold, ...]) -> Device:
    if not bars:
        return device
    texts = [*map(str, bars), *([device.problem] if device.problem else [])]
    return device.model_copy(update={"leasable": False, "problem": ". ".join(texts)[:_MAX_PROBLEM]})
