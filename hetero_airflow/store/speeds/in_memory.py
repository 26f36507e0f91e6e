"""The part of the store in memory that keeps reported speeds."""

from collections.abc import Sequence
from datetime import datetime

from hetero_airflow.model.estimates import TaskName
from hetero_airflow.model.run import MeasuredSpeed
from hetero_airflow.store.speeds.records import LeaseSpeed, SpeedRecord, with_report


class MemorySpeeds:
    """What `SqlStore` does for speeds, in this process's memory."""

    def __init__(self) -> None:
        self._records: dict[tuple[TaskName, str], tuple[int, datetime, SpeedRecord]] = {}
        """Task and device class → number of the last change, its time, record."""
        self._changes = 0

    def add_speeds(self, reports: Sequence[LeaseSpeed], now: datetime) -> None:
        """Add what is new in the reports to what is known of their tasks and device classes."""
        self._changes += 1
        for report in reports:
            key = (report.measured.task, report.measured.device_class)
            before = self._records.get(key)
            record = with_report(None if before is None else before[2], report, now)
            if record is not None:
                self._records[key] = (self._changes, now, record)

    def speeds(self, since: int = 0) -> tuple[int, tuple[MeasuredSpeed, ...]]:
        """The speeds that changed after `since`, and the sequence for the next call."""
        newer = [(change, key, record) for key, (change, _, record) in self._records.items() if change > since]
        newer.sort(key=lambda row: row[:2])
        return max((change for change, _, _ in newer), default=since), tuple(r.measured for _, _, r in newer)

    def _prune_speeds(self, before: datetime) -> None:
        """Delete the speeds that were not measured since that time."""
        self._records = {key: row for key, row in self._records.items() if row[1] >= before}
