"""A worker: a host process that offers devices, with the result of discovery."""

import re
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    StrictStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from hetero_airflow.errors import SettingsError, shorten
from hetero_airflow.model.device import Device, ShortText, Telemetry, device_class

MAX_DEVICES = 4096

MAX_PROBLEMS = 32

_LABELS = TypeAdapter(dict[str, StrictStr])


class WorkerState(StrEnum):
    """Whether a worker gets tasks."""

    ONLINE = "online"
    """Its last heartbeat is recent enough; it gets tasks."""
    LOST = "lost"
    """Its last heartbeat is too old. Its leases end at once and their tasks run elsewhere. The worker gets tasks again
    when its agent reports that no process of an ended lease is left."""


class Worker(BaseModel):
    """A worker and its devices, from the last discovery.

    `runtime` maps the name of a software to its installed version (``{"cuda": "12.4", "torch": "2.13.0"}``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: ShortText
    host: ShortText
    engine: str = "local"
    devices: Annotated[tuple[Device, ...], FailFast()] = Field(max_length=MAX_DEVICES)
    runtime: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    problems: tuple[str, ...] = Field(default=(), max_length=MAX_PROBLEMS)
    """The problem lines of the last discovery; `hetero_airflow.model.problem_lines` says whom a line concerns."""
    boot_id: str = Field(default="", max_length=64)
    """The kernel's id of the machine's current boot, which all containers on the machine see; empty if unknown."""
    state: WorkerState = WorkerState.ONLINE

    @model_validator(mode="after")
    def _ids_are_unique(self) -> "Worker":
        seen: set[str] = set()
        for device in self.devices:
            if device.id in seen:
                raise ValueError(f"two devices of worker {self.id!r} have the id {device.id!r}")
            seen.add(device.id)
        return self

    @property
    def node_assigns_devices(self) -> bool:
        """Whether the node chooses the devices of a task and only their number is decided here (Kubernetes).

        The software comes with the image, and a device can't be shared.
        """
        return self.engine == "kubernetes"

    @property
    def is_scheduler_host(self) -> bool:
        """Whether it is the host of a scheduler, which reports, watches and tests it itself."""
        return self.engine == "local"

    @property
    def cpu(self) -> Device | None:
        """The host's CPU device. `cpus` and `host_memory` are leased from it."""
        return next((device for device in self.devices if device.kind == "cpu"), None)


class DeviceUser(BaseModel):
    """A process that uses a device."""

    model_config = ConfigDict(frozen=True)

    device_id: str
    pid: int
    name: str = ""
    """Empty for a process that this container does not see."""
    owner: str = ""
    """The user who runs it."""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name} of {self.owner})" if self.name else f"process {self.pid}"


class Inventory(BaseModel):
    """The result of one discovery: a worker, its readings, and a line for each probe that failed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    worker: Worker
    telemetry: tuple[Telemetry, ...] = ()
    problems: tuple[str, ...] = ()
    users: tuple[DeviceUser, ...] = ()
    """The processes that use accelerators, without those of discovery itself."""


def parse_labels(text: str, option: str) -> dict[str, str]:
    """A worker's labels from a JSON object of texts; `option` is its name.

    :raises SettingsError: the text is not such an object
    """
    try:
        return _LABELS.validate_json(text)
    except ValidationError:
        raise SettingsError(
            f"{option} = {shorten(text)}",
            found="no JSON object of texts",
            remedy='Write it as {"zone": "a", "rack": "7"}',
        ) from None


TYPE_LABEL = "hetero/type"
"""Label of a worker: the name of its machine type where machines are ordered, such as ``p4d.24xlarge``."""


SPOT_LABEL = "hetero/spot"
"""Label of a worker on a machine that its provider may take back, such as ``true``."""


def is_spot_worker(labels: Mapping[str, str]) -> bool:
    """Whether a worker with these labels is on a spot machine: it has the label, and not with the value false.

    >>> [is_spot_worker(labels) for labels in ({}, {"hetero/spot": "true"}, {"hetero/spot": "false"})]
    [False, True, False]
    """
    return labels.get(SPOT_LABEL, "false").lower() != "false"


def worker_type(worker: Worker) -> str:
    """The machine type from the worker's label; without a label, from its accelerators, or its cores if it has none.

    It consists of letters, digits, ``.``, ``_`` and ``-``, so that it fits into a metric's name and a URL.

    >>> from hetero_airflow.testing import a_cpu, a_worker
    >>> worker_type(a_worker()), worker_type(a_worker(labels={"hetero/type": "p4d.24xlarge"}))
    ('2x-nvidia-a100-sxm4-40gb', 'p4d.24xlarge')
    >>> worker_type(a_worker(devices=(a_cpu(32),)))
    'cpu-32'
    """
    classes = Counter(device_class(device) for device in worker.devices if device.kind != "cpu")
    cores = 0 if worker.cpu is None else len(worker.cpu.cores)
    accelerators = "_".join(f"{number}x-{name}" for name, number in sorted(classes.items()))
    name = worker.labels.get(TYPE_LABEL) or accelerators or f"cpu-{cores}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100]
