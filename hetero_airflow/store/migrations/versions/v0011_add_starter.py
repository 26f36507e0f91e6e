"""Add the scheduler that starts the task of a lease."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. The tasks of earlier leases may have been started, so no scheduler may claim them."""
    comment = "The only scheduler that starts its task; NULL until one claims the start"
    op.add_column("hetero_lease", sa.Column("starter", sa.String(250), comment=comment))
    op.execute("UPDATE hetero_lease SET starter = 'before 0011'")


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("hetero_lease", "starter")  # not in a batch: its copy of a table drops the rows that refer to it
