"""Add holds on devices, and the records of devices' errors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "hetero_bar",
        sa.Column("worker_id", sa.String(320), nullable=False),
        sa.Column("device_id", sa.String(320), nullable=False, comment="Empty for the whole worker"),
        sa.Column("kind", sa.String(16), nullable=False, comment="drained or quarantined"),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("returns", sa.Text(), nullable=False, comment="What brings it back"),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("moves", sa.Boolean(), nullable=False, comment="Whether tasks that run there shall go on elsewhere"),
        sa.PrimaryKeyConstraint("worker_id", "device_id", "kind", name=op.f("hetero_bar_pkey")),
        comment="Devices that get no new task; a change here changes the worker's row too",
    )
    op.create_table(
        "hetero_health",
        sa.Column("worker_id", sa.String(320), nullable=False),
        sa.Column("device_id", sa.String(320), nullable=False),
        sa.Column("record", sa.Text(), nullable=False, comment="State, strikes and recent errors, JSON"),
        sa.PrimaryKeyConstraint("worker_id", "device_id", name=op.f("hetero_health_pkey")),
        comment="Devices that ever had an error and are not forgiven",
    )


def downgrade() -> None:
    """Drop the tables; devices on hold are leased again."""
    op.drop_table("hetero_health")
    op.drop_table("hetero_bar")
