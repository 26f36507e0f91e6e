"""Add how the task of a lease ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; it is unknown for leases that ended before."""
    comment = "How its task stood then; NULL for one that never ran, or if nobody knows"
    op.add_column("hetero_lease", sa.Column("outcome", sa.String(16), nullable=True, comment=comment))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("hetero_lease", "outcome")
