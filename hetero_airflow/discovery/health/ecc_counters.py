"""New uncorrected ECC errors, from counters that only show how many there ever were."""

from __future__ import annotations

from collections.abc import Iterable

from hetero_airflow.model.device import Telemetry


class EccCounters:
    """Remembers each device's counter.

    >>> growth = EccCounters()
    >>> growth.take([Telemetry(device_id="GPU-0", ecc_errors=7)])
    []
    >>> growth.take([Telemetry(device_id="GPU-0", ecc_errors=9)])
    [('GPU-0', 2)]
    """

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}

    def take(self, readings: Iterable[Telemetry]) -> list[tuple[str, int]]:
        """(device id, errors since the last reading), of those that had some; of a first reading nothing is known."""
        grown = []
        for reading in readings:
            if reading.ecc_errors is None:
                continue
            more = reading.ecc_errors - self._counters.get(reading.device_id, reading.ecc_errors)
            self._counters[reading.device_id] = reading.ecc_errors
            if more > 0:
                grown.append((reading.device_id, more))
        return grown


def ecc_text(errors: int) -> str:
    """How many, for people.

    >>> ecc_text(1), ecc_text(2)
    ('1 uncorrected ECC error', '2 uncorrected ECC errors')
    """
    return f"{errors} uncorrected ECC error{'s' if errors > 1 else ''}"
