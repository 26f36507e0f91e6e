"""Add when devices were there, and the sums of days of devices and tasks."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from hetero_airflow.store.utc_time import UtcDateTime

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_ID, _NAME, _CLASS, _KIND = sa.String(320), sa.String(250), sa.String(512), sa.String(128)
_TIME = "In millionths of a second times thousandths of a device"


def upgrade() -> None:
    """Create the tables and the column. The devices of online workers are there from now on."""
    op.add_column(
        "hetero_state",
        sa.Column("usage_until", UtcDateTime, comment="What was before it is in the sums of days; NULL if nothing is"),
    )
    presence = op.create_table(
        "hetero_device_presence",
        sa.Column("worker_id", _ID, nullable=False),
        sa.Column("device_id", _ID, nullable=False),
        sa.Column("since", UtcDateTime, nullable=False),
        sa.Column("until", UtcDateTime, comment="NULL while it goes on"),
        sa.Column("device_class", _CLASS, nullable=False),
        sa.Column("kind", _KIND, nullable=False),
        sa.Column("capacity_milli", sa.Integer, nullable=False),
        sa.Column("is_on_hold", sa.Boolean, nullable=False, comment="It gets no new task: a hold, or a problem"),
        sa.PrimaryKeyConstraint("worker_id", "device_id", "since", name="hetero_device_presence_pkey"),
        comment="When online workers reported which devices; outlives the workers",
    )
    op.create_index("hetero_device_presence_until_idx", "hetero_device_presence", ["until"])
    op.create_index(
        "hetero_device_presence_open_idx",
        "hetero_device_presence",
        ["worker_id", "device_id"],
        unique=True,
        sqlite_where=sa.text("until IS NULL"),
        postgresql_where=sa.text("until IS NULL"),
    )
    op.create_table(
        "hetero_device_day",
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("worker_id", _ID, nullable=False),
        sa.Column("device_id", _ID, nullable=False),
        sa.Column("device_class", _CLASS, nullable=False),
        sa.Column("kind", _KIND, nullable=False),
        sa.Column("existed", sa.BigInteger, nullable=False, comment=_TIME),
        sa.Column("held", sa.BigInteger, nullable=False, comment=_TIME),
        sa.Column("on_hold", sa.BigInteger, nullable=False, comment=_TIME),
        sa.PrimaryKeyConstraint("day", "worker_id", "device_id", "device_class", name="hetero_device_day_pkey"),
        comment="What each device did on a day (UTC); outlives the leases",
    )
    op.create_table(
        "hetero_task_day",
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("dag_id", _NAME, nullable=False),
        sa.Column("task_id", _NAME, nullable=False),
        sa.Column("device_class", _CLASS, nullable=False),
        sa.Column("kind", _KIND, nullable=False),
        sa.Column("held", sa.BigInteger, nullable=False, comment=_TIME),
        sa.Column("leases", sa.BigInteger, nullable=False, comment="Leases that began on this day"),
        sa.PrimaryKeyConstraint("day", "dag_id", "task_id", "device_class", name="hetero_task_day_pkey"),
        comment="What the tries of each task held on a day (UTC); outlives the leases",
    )
    if not op.get_context().as_sql:
        _note_present_devices(presence)


def _note_present_devices(presence: sa.Table) -> None:
    """Begin the times of the devices that online workers report now."""
    connection = op.get_bind()
    devices = connection.execute(
        sa.text(
            "SELECT d.worker_id, d.id, d.inventory, d.kind, d.leasable, d.offered_milli FROM hetero_device d "
            "JOIN hetero_worker w ON w.id = d.worker_id WHERE w.state = 'online' AND NOT d.is_vanished"
        )
    ).all()
    holds = {tuple(row) for row in connection.execute(sa.text("SELECT worker_id, device_id FROM hetero_bar"))}
    facts = [(row, json.loads(row.inventory)) for row in devices]
    divided = {(row.worker_id, device.get("parent")) for row, device in facts}
    now = datetime.now(UTC)
    rows = [
        {
            "worker_id": row.worker_id,
            "device_id": row.id,
            "since": now,
            "until": None,
            "device_class": "/".join(filter(None, (device["vendor"], device["model"], device.get("partition"))))
            + (" (simulated)" if device.get("simulated") else ""),
            "kind": row.kind,
            "capacity_milli": row.offered_milli,
            "is_on_hold": not row.leasable
            or any((row.worker_id, name) in holds for name in ("", row.id, device.get("parent"))),
        }
        for row, device in facts
        if row.leasable or (row.worker_id, row.id) not in divided
    ]
    if rows:
        connection.execute(presence.insert(), rows)


def downgrade() -> None:
    """Drop them."""
    for name in ("hetero_task_day", "hetero_device_day", "hetero_device_presence"):
        op.drop_table(name)
    op.drop_column("hetero_state", "usage_until")
