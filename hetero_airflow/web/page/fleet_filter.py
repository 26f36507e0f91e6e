"""Which workers and devices a reader asks for. Pure.

FastAPI reads the fields of `FleetFilter` from the query, so their annotations are objects, not texts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Query

from hetero_airflow.executor.explanation.device_state import DeviceState, device_state
from hetero_airflow.model.device import Device, Telemetry
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.topology import RACK_LABEL, SITE_LABEL
from hetero_airflow.model.worker import Worker

Text = Annotated[str, Query(max_length=256)]


@dataclass(frozen=True, slots=True)
class FleetFilter:
    """Empty fields filter nothing. Texts are compared as they are; none is a pattern."""

    search: Text = ""
    """A part of the worker's id or host, or of the device's id or model; upper and lower case are equal."""
    kind: Text = ""
    vendor: Text = ""
    model: Text = ""
    site: Text = ""
    rack: Text = ""
    label: Text = ""
    """``name`` or ``name=value`` of a worker's label."""
    state: DeviceState | None = None

    def admits_worker(self, worker: Worker) -> bool:
        """Whether the worker's own facts match; the search is left to the devices."""
        name, equals, value = self.label.partition("=")
        return (
            (not self.site or worker.labels.get(SITE_LABEL) == self.site)
            and (not self.rack or worker.labels.get(RACK_LABEL) == self.rack)
            and (not name or (name in worker.labels and (not equals or worker.labels[name] == value)))
        )

    def admits_device(self, worker: Worker, device: Device, state: DeviceState) -> bool:
        """Whether a device of an admitted worker matches."""
        return (
            (not self.kind or device.kind == self.kind)
            and (not self.vendor or device.vendor == self.vendor)
            and (not self.model or device.model == self.model)
            and (self.state is None or state is self.state)
            and (not self.search or self._finds(worker.id, worker.host, device.id, f"{device.vendor}/{device.model}"))
        )

    def _finds(self, *texts: str) -> bool:
        needle = self.search.casefold()
        return any(needle in text.casefold() for text in texts)


def filtered_fleet(
    snapshot: Snapshot, readings: Mapping[tuple[str, str], Telemetry], wanted: FleetFilter
) -> Iterator[tuple[Worker, list[tuple[Device, DeviceState]]]]:
    """The matching workers in the order of their ids, each with its matching devices.

    A worker without devices matches if only its own facts are asked for.
    """
    holds = {hold.worker_id for hold in snapshot.holds}
    for worker in snapshot.workers:
        if not wanted.admits_worker(worker):
            continue
        holds_of_worker = snapshot.holds_of(worker.id) if worker.id in holds else ()
        states = (
            (device, device_state(worker, device, snapshot.used(*key), readings.get(key), holds_of_worker))
            for device in worker.devices
            for key in ((worker.id, device.id),)
        )
        devices = [(device, state) for device, state in states if wanted.admits_device(worker, device, state)]
        if devices or (not worker.devices and wanted == FleetFilter()):
            yield worker, devices
