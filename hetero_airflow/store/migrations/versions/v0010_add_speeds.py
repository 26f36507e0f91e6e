"""Add the speeds that tasks reported."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from hetero_airflow.store.utc_time import UtcDateTime

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; no speed is known."""
    op.create_table(
        "hetero_speed",
        sa.Column("dag_id", sa.String(250), nullable=False),
        sa.Column("task_id", sa.String(250), nullable=False),
        sa.Column("device_class", sa.String(512), nullable=False),
        sa.Column("record", sa.Text, nullable=False, comment="The measured speed, and which leases it counts, JSON"),
        sa.Column("measured_at", UtcDateTime, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("dag_id", "task_id", "device_class", name="hetero_speed_pkey"),
        comment="Steps per second that tasks reported; outlives their leases",
    )
    op.create_index("hetero_speed_changed_idx", "hetero_speed", ["changed"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("hetero_speed")
