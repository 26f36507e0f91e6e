"""What requests were served before, gangs, and when a lease's task last saved."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; what is stored already was served nothing and is of no gang."""
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
    """Take them away; leases that are told to end are active again."""
    op.execute("UPDATE hetero_lease SET state = 'active' WHERE state = 'preempted'")
    op.drop_column("hetero_lease", "saved_at")  # not in a batch: its copy of a table drops the rows that refer to it
    for column in ("gang_size", "gang", "served"):
        op.drop_column("hetero_request", column)
