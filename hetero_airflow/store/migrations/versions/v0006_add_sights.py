"""Add the leases that workers' agents report, and the heartbeats of the API server."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_LEASES = "Ids of the leases whose processes are there, a JSON list; NULL if no agent says"


def upgrade() -> None:
    """Add the column and the table; they are empty until the next heartbeats."""
    op.add_column("hetero_telemetry", sa.Column("leases", sa.Text(), nullable=True, comment=_LEASES))
    op.create_table(
        "hetero_server",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False, comment="No API server was away since then"),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("hetero_server_pkey")),
        sa.CheckConstraint("id = 1", name=op.f("hetero_server_one_row_check")),
        comment="One row, once an API server has said that it is there",
    )


def downgrade() -> None:
    """Drop the column and the table."""
    op.drop_table("hetero_server")
    op.drop_column("hetero_telemetry", "leases")
