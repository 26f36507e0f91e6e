"""Add when each scheduler last decided."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from hetero_airflow.store.utc_time import UtcDateTime

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table. A scheduler adds its row when it decides."""
    op.create_table(
        "hetero_scheduler",
        sa.Column("id", sa.String(320), nullable=False, comment="Host and process"),
        sa.Column("decided_at", UtcDateTime, nullable=False, comment="The end of its last cycle, some seconds late"),
        sa.PrimaryKeyConstraint("id", name="hetero_scheduler_pkey"),
        comment="When each scheduler last decided; stays when the scheduler dies",
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("hetero_scheduler")
