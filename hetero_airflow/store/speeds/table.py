"""The table of the speeds that tasks report."""

import sqlalchemy as sa

from hetero_airflow.store.utc_time import UtcDateTime

_NAME = sa.String(250)


def make_speed_table(metadata: sa.MetaData) -> sa.Table:
    """Add the table to the metadata; it has a row for each task and class of devices."""
    return sa.Table(
        "hetero_speed",
        metadata,
        sa.Column("dag_id", _NAME),
        sa.Column("task_id", _NAME),
        sa.Column("device_class", sa.String(512)),
        sa.Column("record", sa.Text, nullable=False, comment="The measured speed, and which leases it counts, JSON"),
        sa.Column("measured_at", UtcDateTime, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("dag_id", "task_id", "device_class"),
        sa.Index(None, "changed"),
        comment="Steps per second that tasks reported; outlives their leases",
    )
