"""A device: one physical unit that a probe found, or a MIG instance of one."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, field_validator

from hetero_airflow.model.devices.names import matches_model as matches_model
from hetero_airflow.model.devices.names import model_tokens as model_tokens
from hetero_airflow.units import MAX_BYTES, MILLI_PER_DEVICE, nominal_sizes

DeviceWord = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._+-]*$", max_length=128)]
"""A vendor, kind or model: lower case, parts joined by dashes (``a100-sxm4-80gb``)."""

SICK_KEY = "is_sick"
"""Key in a device's `details`: true if its `problem` is in the hardware. Such a device is tested before it is used."""

NODE_KEY = "node"
"""Key in a device's `details`: the device node that every process opens which uses the device."""

UNCOVERED_KEY = "is_uncovered"
"""Key in a device's `details`: true if the host can't see which processes use it, so an escaped one stays unseen."""

LEFT_OUT_KEY = "is_left_out"
"""Key in a device's `details`: true if this host leaves the device to others, so their processes are no concern."""

MAX_PROBLEM = 500
"""Characters of a device's `problem`."""

ShortText = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Device(BaseModel):
    """The facts of a device that do not change while it is present. Readings that change are `Telemetry`.

    A host's CPU is one device, leased core by core. A GPU in MIG mode is not leasable; its instances are. Each
    instance is a device whose `parent` is the GPU's id.

    >>> a100 = Device(id="GPU-1", vendor="nvidia", kind="gpu", model="a100-sxm4-80gb", index=0, memory_bytes=2**36)
    >>> a100.capacity_milli
    1000
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: ShortText
    """A name that the vendor's software accepts and that survives a reboot: an NVML UUID, a PCI address, ``cpu``."""
    vendor: DeviceWord
    kind: DeviceWord
    model: DeviceWord
    index: int = Field(ge=0, le=100_000)
    """The number by which the vendor's runtime counts (CUDA in the order of the bus, ROCr, CANN, libtpu)."""
    memory_bytes: int | None = Field(ge=0, le=MAX_BYTES)
    """None if the vendor gives no figure. Only a CPU can have 0: host memory of which nothing is left."""
    cores: tuple[int, ...] = ()
    """CPU only: the ids of the logical cores that this process may run on, ordered by NUMA node."""
    partition: DeviceWord | None = None
    """The profile of a MIG instance, ``1g.10gb``, or the modes of an AMD compute partition, ``cpx-nps4``."""
    parent: ShortText | None = None
    """The GPU that a part belongs to: the id of a device, or the name of an AMD chip, which is none."""
    leasable: bool = True
    """False for a device that must not be leased; `problem` gives the reason."""
    problem: str | None = Field(default=None, max_length=MAX_PROBLEM)
    driver: str | None = Field(default=None, max_length=64)
    capability: str | None = Field(default=None, max_length=64)
    """What compiled code must support: CUDA compute capability (``8.0``), ROCm target (``gfx942``), and for a CPU its
    architecture (``x86-64``)."""
    numa_node: int | None = None
    pci: str | None = Field(default=None, max_length=64)
    peers: tuple[str, ...] = ()
    """Ids of the devices with a direct link (NVLink, xGMI, HCCS) to this one."""
    simulated: bool = False
    details: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """More facts from the probe, such as sockets and clock_mhz. They do not decide where a single request goes. For
    gangs, pcie_generation and pcie_width give the speed between members. `SICK_KEY` is set if the vendor's software
    reports the device as broken or asks for a reset."""

    @field_validator("memory_bytes", mode="before")
    @classmethod
    def _no_zero(cls, value: object, info: ValidationInfo) -> object:
        """A 0 is no figure, whoever reports it."""
        return None if value == 0 and info.data.get("kind") != "cpu" else value

    @property
    def capacity_milli(self) -> int:
        """The leasable amount: 1000 for a device, 1000 for each core of a CPU."""
        return MILLI_PER_DEVICE * len(self.cores) if self.kind == "cpu" else MILLI_PER_DEVICE

    def not_leasable(self, problem: str) -> "Device":
        """The device as one that gets no task, with this problem before its own."""
        text = ". ".join(filter(None, (problem, self.problem)))
        return self.model_copy(update={"leasable": False, "problem": text[:MAX_PROBLEM]})

    def __str__(self) -> str:
        return f"{self.name} (simulated)" if self.simulated else self.name

    @property
    def name(self) -> str:
        """Vendor, model and partition: ``nvidia/a100-sxm4-40gb mig-1g.10gb``, ``amd/instinct-mi300x cpx-nps4``."""
        mark = "mig-" if self.vendor == "nvidia" else ""
        return f"{self.vendor}/{self.model}" + (f" {mark}{self.partition}" if self.partition else "")


def device_class(device: Device) -> str:
    """The key of speeds and durations: vendor and model, and for a MIG instance its profile.

    >>> device_class(Device(id="a", vendor="nvidia", kind="gpu", model="v100", index=0, memory_bytes=2**34))
    'nvidia/v100'
    """
    return f"{device.vendor}/{device.model}" + (f"/{device.partition}" if device.partition else "")


class Telemetry(BaseModel):
    """The current readings of a device; None where the vendor gives no value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device_id: ShortText
    memory_free_bytes: int | None = None
    utilization: float | None = None
    """0 to 1."""
    temperature_c: float | None = None
    power_w: float | None = None
    pcie_sent_bytes_per_s: int | None = None
    """Bytes that the device sent over PCIe. NVIDIA measures over 20 ms."""
    pcie_received_bytes_per_s: int | None = None
    ecc_errors: int | None = None
    """Uncorrected ECC errors since the driver was loaded."""
    xid: int | None = None
    """NVIDIA's number of the last critical error, if the driver reports it."""


def device_tokens(device: Device) -> frozenset[str]:
    """The words by which a request may name a device: those of its model, and the sizes near that of its memory.

    Model names from vendors often lack the size, and `hetero_airflow.units.nominal_range` says which sizes are near.

    >>> h100 = Device(id="GPU-1", vendor="nvidia", kind="gpu", model="h100-pcie", index=0, memory_bytes=85520809984)
    >>> matches_model("h100-80gb", device_tokens(h100))
    True
    """
    tokens = model_tokens(device.model)
    return tokens | {f"{size}gb" for size in nominal_sizes(device.memory_bytes)} if device.memory_bytes else tokens
