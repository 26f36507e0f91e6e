"""``airflow hetero devices``: the hardware of this machine."""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping

from rich.console import RenderableType
from sqlalchemy import Engine

from hetero_airflow.cli.action import action, database
from hetero_airflow.cli.output import cell, show, show_json, table
from hetero_airflow.discovery.discover import discover
from hetero_airflow.errors import HeteroError
from hetero_airflow.executor.configuration import read_configuration
from hetero_airflow.executor.explanation.device_text import count, pairs_text
from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.devices.features import DeviceFeatures, device_features
from hetero_airflow.model.devices.memory import memory_text
from hetero_airflow.model.hold import Hold, with_holds
from hetero_airflow.model.worker import Inventory
from hetero_airflow.store.sql.holds import read_holds
from hetero_airflow.store.sql.transaction import read_transaction
from hetero_airflow.units import format_bytes


@action
def devices(args: Namespace) -> None:
    """Discover this machine's devices, and show the holds on them if a database answers."""
    configuration = read_configuration()
    worker_id, labels = configuration.worker_id, configuration.labels
    timeout_s, exclude = configuration.probe_timeout_s, configuration.exclude_devices
    inventory = discover(worker_id, labels=labels, probe_timeout_s=timeout_s, exclude=exclude)
    worker = with_holds(inventory.worker, holds_here(database(), worker_id))
    inventory = inventory.model_copy(update={"worker": worker})
    if args.features:
        features = {device.id: device_features(device) for device in worker.devices}
        if args.json:
            show_json({id_: known._asdict() for id_, known in features.items()})
        else:
            show(*features_report(worker.devices, features))
    elif args.json:
        show_json(inventory.model_dump(mode="json"))
    else:
        show(*device_report(inventory))


def holds_here(engine: Engine, worker_id: str) -> tuple[Hold, ...]:
    """The holds on a worker and its devices; none if the database does not answer."""
    try:
        with read_transaction(engine) as connection:
            return tuple(read_holds(connection, [worker_id]).get(worker_id, ()))
    except HeteroError:
        return ()


def device_report(inventory: Inventory) -> Iterator[RenderableType]:
    """The devices as a table, then the software, the labels, and a line for each problem. Pure."""
    worker = inventory.worker
    readings = {reading.device_id: reading for reading in inventory.telemetry}
    by_id = {device.id: device for device in worker.devices}
    accelerators = [device for device in worker.devices if device.kind != "cpu" and device.leasable]
    simulated = sum(device.simulated for device in accelerators)
    mark = f", {simulated} of them simulated" if simulated else ""
    yield cell(f"Worker {worker.id}: {count(len(accelerators), 'accelerator')} to lease{mark}", style="bold")
    rows = [
        (
            cell(*_identity(device, by_id)),
            cell(*_memory(device, readings.get(device.id))),
            cell(*_use(readings.get(device.id))),
            cell(*_place(device, by_id)),
            cell("yes") if device.leasable else cell("no", style="red"),
        )
        for device in worker.devices
    ]
    yield table(("DEVICE", "MEMORY", "USE", "PLACE", "LEASABLE"), rows, whole=0)
    if worker.runtime:
        yield cell(f"Software: {pairs_text(worker.runtime.items(), ' ')}")
    if worker.labels:
        yield cell(f"Labels: {pairs_text(worker.labels.items(), '=')}")
    for device in worker.devices:
        if not device.leasable or device.problem:
            kind = "Note on" if device.leasable else "Not leasable:"
            yield cell(f"{kind} {device.id}: {device.problem or 'its probe gives no reason'}", style="yellow")
    for problem in inventory.problems:
        yield cell(f"Problem: {problem}", style="red")


def features_report(devices: Iterable[Device], features: Mapping[str, DeviceFeatures]) -> Iterator[RenderableType]:
    """What each device computes fast, as a table, and a line for each that is not known. Pure.

    A task on a simulated device computes on the CPU.

    :param features: by the ids of the devices
    """
    rows = [
        (
            cell(f"{device} ({device.kind} {device.index})"),
            cell(known.architecture, *([known.matrix_units] if known.matrix_units else [])),
            cell("unknown" if known.unknown else " ".join(known.dtypes).upper() or "FP32"),
            cell("as the CPU" if device.simulated else known.training_dtype.upper()),
            cell(known.compiler),
            cell(known.collectives),
        )
        for device in devices
        for known in (features[device.id],)
    ]
    yield table(("DEVICE", "ARCHITECTURE", "COMPUTES FAST", "TRAINS IN", "COMPILER", "COLLECTIVES"), rows, whole=0)
    for device in devices:
        if why := features[device.id].unknown:
            trains = "" if device.simulated else ". A task there trains in FP32"
            yield cell(f"Unknown: {device.id}: {why}{trains}.", style="yellow")


def _identity(device: Device, devices: Mapping[str, Device]) -> Iterator[str]:
    yield f"{device} ({device.kind} {device.index})"
    yield device.id
    if device.parent is not None:
        yield f"instance of {_short_name(device.parent, devices)}"
    facts = {"driver": device.driver, "architecture" if device.kind == "cpu" else "capability": device.capability}
    fact_texts = [f"{name} {value}" for name, value in facts.items() if value]
    if fact_texts:
        yield ", ".join(fact_texts)


def _memory(device: Device, reading: Telemetry | None) -> Iterator[str]:
    if reading is not None and reading.memory_free_bytes is not None:
        yield f"{format_bytes(reading.memory_free_bytes)} free"
        yield f"of {memory_text(device)}"
    else:
        yield memory_text(device)
    if device.kind == "cpu":
        yield count(len(device.cores), "core")


def _use(reading: Telemetry | None) -> Iterator[str]:
    if reading is not None and reading.utilization is not None:
        yield f"{reading.utilization:.0%}"
    if reading is not None and reading.temperature_c is not None:
        yield f"{reading.temperature_c:.0f} °C"
    if reading is not None and reading.power_w is not None:
        yield f"{reading.power_w:.0f} W"
    if reading is not None and reading.pcie_received_bytes_per_s is not None:
        yield f"{reading.pcie_received_bytes_per_s / 1e9:.2f} GB/s in"
    if reading is not None and reading.pcie_sent_bytes_per_s is not None:
        yield f"{reading.pcie_sent_bytes_per_s / 1e9:.2f} GB/s out"


def _place(device: Device, devices: Mapping[str, Device]) -> Iterator[str]:
    if device.numa_node is not None:
        yield f"NUMA {device.numa_node}"
    if device.pci is not None:
        yield device.pci
    if device.peers:
        yield f"linked to {', '.join(_short_name(peer, devices) for peer in device.peers)}"


def _short_name(device_id: str, devices: Mapping[str, Device]) -> str:
    """The number that the vendor's tools show; the id if the device is unknown."""
    device = devices.get(device_id)
    return f"{device.kind} {device.index}" if device else device_id
