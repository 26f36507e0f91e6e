"""New uncorrected ECC errors, from counters that only show a total."""

from __future__ import annotations

from collections.abc import Iterable

from hetero_airflow.model.device import Telemetry


class EccCounters:
    """Remembers each device's counter.

    >>> counters = EccCounters()
    >>> counters.new_errors([Telemetry(device_id="GPU-0", ecc_errors=7)])
    []
    >>> counters.new_errors([Telemetry(device_id="GPU-0", ecc_errors=9)])
    [('GPU-0', 2)]
    """

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}

    def new_errors(self, readings: Iterable[Telemetry]) -> list[tuple[str, int]]:
        """(device id, errors since its last reading), of the devices with new errors. A first reading shows none."""
        grown = []
        for reading in readings:
            if reading.ecc_errors is None:
                continue
            more = reading.ecc_errors - self._counters.get(reading.device_id, reading.ecc_errors)
            self._counters[reading.device_id] = reading.ecc_errors
            if more > 0:
                grown.append((reading.device_id, more))
        return grown
