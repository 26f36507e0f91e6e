"""The devices of this host, as the scheduler reports them: without those that others and local runs use."""

import logging
import time
from collections.abc import Callable, Container
from contextlib import suppress
from functools import partial

from hetero_airflow.discovery.inventory_watch import InventoryWatch
from hetero_airflow.discovery.readings_watch import ReaderProcess, ReadingsWatch
from hetero_airflow.discovery.used_devices import UsedDevices
from hetero_airflow.engines.host.cgroups import covered
from hetero_airflow.engines.host.held_devices import LocalRunDevices
from hetero_airflow.engines.host.lease_files import (
    UncheckedLeases,
    current_leases,
    current_process_namespace,
    read_lease_files,
    remove_lease_file,
)
from hetero_airflow.engines.host.processes import lease_processes
from hetero_airflow.executor.configuration import Configuration
from hetero_airflow.model.device import Telemetry
from hetero_airflow.model.devices.identity import contested_devices, contested_text
from hetero_airflow.model.snapshot import Snapshot
from hetero_airflow.model.worker import Inventory

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 2.0
"""Interval between two looks at the lease files. It reads no processes unless a run has left its devices unchecked."""


class HostInventory:
    """Runs discovery on a scheduler's host. Nothing here blocks.

    :param live_leases: returns the ids of the leases that are not over, by the store
    """

    def __init__(self, configuration: Configuration, live_leases: Callable[[], Container[str]]) -> None:
        self._worker_id, self._live_leases = configuration.worker_id, live_leases
        self._watch = InventoryWatch(
            configuration.worker_id,
            configuration.labels,
            interval_s=configuration.discovery_interval_s,
            probe_timeout_s=configuration.probe_timeout_s,
            exclude=configuration.exclude_devices,
        )
        self._readings = ReadingsWatch(partial(ReaderProcess, timeout_s=configuration.probe_timeout_s))
        self._used = UsedDevices(configuration.allowed_processes)
        self._unchecked = UncheckedLeases()
        self._local_runs = LocalRunDevices()
        self._last: Inventory | None = None
        """What the last discovery found, without the devices that others use."""
        self._look_at = 0.0
        self._contested: frozenset[str] = frozenset()
        """What was logged of devices that another worker reports too."""

    def poll(self) -> Inventory | None:
        """A new inventory if there is one. Call `note_recorded` when the store has it."""
        has_changed = False
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_EVERY_S
            self._look_at_leases()
            self._readings.ask()
            has_changed = self._local_runs.look()
        inventory = self._watch.poll()
        if inventory is not None:
            self._readings.take(inventory.telemetry, self._watch.looked_at)
            live = self._live_leases()
            leases = current_leases(is_known=lambda file: bool(file.local_run) or file.lease in live)
            self._used.take(inventory.users, leases.include)
            worker = self._used.without_used(covered(inventory.worker))
            self._last, has_changed = inventory.model_copy(update={"worker": worker}), True
        if self._last is None or not has_changed:
            return None
        return self._last.model_copy(update={"worker": self._local_runs.without_held(self._last.worker)})

    def note_recorded(self) -> None:
        """The store has the last inventory: the leases that ended before it was made have nothing left."""
        self._unchecked.note_checked(self._watch.looked_at)

    def log_contested(self, snapshot: Snapshot) -> None:
        """Log the devices of this host that another worker reports too, each once."""
        contested = [reports for reports in contested_devices(snapshot.workers) if self._worker_id in dict(reports)]
        texts = dict.fromkeys(map(contested_text, contested))
        for text in texts.keys() - self._contested:
            log.warning(text)
        self._contested = frozenset(texts)

    def readings(self) -> tuple[Telemetry, ...]:
        """The newest readings of the devices; without values if they are too old."""
        return self._readings.readings()

    def close(self) -> None:
        """Stop a running discovery, and the readers."""
        self._watch.close()
        self._readings.close()

    def _look_at_leases(self) -> None:
        """Find the runs whose devices nobody has looked at, and remove what killed supervisors left of others."""
        place = current_process_namespace()
        files = {
            path: file
            for path, file in read_lease_files().items()
            if file.place == place
            and file.worker == self._worker_id
            and (file.needs_check or not file.supervisor.is_running)
        }
        used = lease_processes({file.lease: file.root for file in files.values()}) if files else {}
        self._unchecked.update(files, used)
        for path, file in files.items():
            if not file.needs_check and file.lease not in used:
                with suppress(OSError):
                    remove_lease_file(path, file)
        if self._unchecked.is_look_due or self._used.has_changed:
            self._watch.refresh()
