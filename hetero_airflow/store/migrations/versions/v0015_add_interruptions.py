"""Add how often a request lost its devices before its end."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; what was interrupted before counts as never interrupted."""
    interruptions = sa.Column(
        "interruptions",
        sa.Integer,
        nullable=False,
        server_default="0",
        comment="How often it lost its devices before its end and went on later",
    )
    op.add_column("hetero_request", interruptions)


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("hetero_request", "interruptions")
