"""The tables of usage."""

import sqlalchemy as sa

from hetero_airflow.store.utc_time import UtcDateTime

_ID, _NAME, _CLASS, _KIND = sa.String(320), sa.String(250), sa.String(512), sa.String(128)
_TIME = "In millionths of a second times thousandths of a device"


def make_presence_table(metadata: sa.MetaData) -> sa.Table:
    """Add the table of the times in which devices were there; a time that goes on has no end."""
    table = sa.Table(
        "hetero_device_presence",
        metadata,
        sa.Column("worker_id", _ID),
        sa.Column("device_id", _ID),
        sa.Column("since", UtcDateTime),
        sa.Column("until", UtcDateTime, comment="NULL while it goes on"),
        sa.Column("device_class", _CLASS, nullable=False),
        sa.Column("kind", _KIND, nullable=False),
        sa.Column("capacity_milli", sa.Integer, nullable=False),
        sa.Column("is_on_hold", sa.Boolean, nullable=False, comment="It gets no new task: a hold, or a problem"),
        sa.PrimaryKeyConstraint("worker_id", "device_id", "since"),
        sa.Index(None, "until"),
        comment="When online workers reported which devices; outlives the workers",
    )
    sa.Index(
        "hetero_device_presence_open_idx",
        table.c.worker_id,
        table.c.device_id,
        unique=True,
        sqlite_where=table.c.until.is_(None),
        postgresql_where=table.c.until.is_(None),
    )
    return table


def make_device_day_table(metadata: sa.MetaData) -> sa.Table:
    """Add the table of the sums of devices; see `hetero_airflow.model.usage.device_time.DeviceDay`."""
    return sa.Table(
        "hetero_device_day",
        metadata,
        sa.Column("day", sa.Date),
        sa.Column("worker_id", _ID),
        sa.Column("device_id", _ID),
        sa.Column("device_class", _CLASS),
        sa.Column("kind", _KIND, nullable=False),
        sa.Column("existed", sa.BigInteger, nullable=False, comment=_TIME),
        sa.Column("held", sa.BigInteger, nullable=False, comment=_TIME),
        sa.Column("on_hold", sa.BigInteger, nullable=False, comment=_TIME),
        sa.PrimaryKeyConstraint("day", "worker_id", "device_id", "device_class"),
        comment="What each device did on a day (UTC); outlives the leases",
    )


def make_task_day_table(metadata: sa.MetaData) -> sa.Table:
    """Add the table of the sums of tasks; see `hetero_airflow.model.usage.device_time.TaskDay`."""
    return sa.Table(
        "hetero_task_day",
        metadata,
        sa.Column("day", sa.Date),
        sa.Column("dag_id", _NAME),
        sa.Column("task_id", _NAME),
        sa.Column("device_class", _CLASS),
        sa.Column("kind", _KIND, nullable=False),
        sa.Column("held", sa.BigInteger, nullable=False, comment=_TIME),
        sa.Column("leases", sa.BigInteger, nullable=False, comment="Leases that began on this day"),
        sa.PrimaryKeyConstraint("day", "dag_id", "task_id", "device_class"),
        comment="What the tries of each task held on a day (UTC); outlives the leases",
    )
