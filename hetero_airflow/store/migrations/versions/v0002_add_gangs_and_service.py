"""Add attained service, gangs, and the time of a lease's last checkpoint."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; stored requests have no attained service and no gang."""
    served = "Device class → seconds held before, a JSON object"
    gang = "Placed together with the others of this name"
    saved_at = "When its task last published a checkpoint"
    for column in (
        sa.Column("served", sa.Text(), nullable=False, server_default="{}", comment=served),
        sa.Column("gang", sa.String(320), nullable=True, comment=gang),
        sa.Column("gang_size", sa.Integer(), nullable=False, server_default="1"),
    ):
        op.add_column("hetero_request", column)
    op.add_column("hetero_lease", sa.Column("saved_at", sa.DateTime(timezone=True), nullable=True, comment=saved_at))


def downgrade() -> None:
    """Drop the columns; preempted leases are active again."""
    op.execute("UPDATE hetero_lease SET state = 'active' WHERE state = 'preempted'")
    op.drop_column("hetero_lease", "saved_at")  # not in a batch: its copy of a table drops the rows that refer to it
    for column in ("gang_size", "gang", "served"):
        op.drop_column("hetero_request", column)
