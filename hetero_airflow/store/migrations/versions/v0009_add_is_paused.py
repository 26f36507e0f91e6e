"""Add whether a person has paused a request."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; no request is paused."""
    is_paused = sa.Column(
        "is_paused",
        sa.Boolean,
        nullable=False,
        server_default=sa.false(),
        comment="It waits and gets no devices",
    )
    op.add_column("hetero_request", is_paused)


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("hetero_request", "is_paused")
