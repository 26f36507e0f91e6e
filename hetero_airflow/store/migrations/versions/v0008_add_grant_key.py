"""Add the key with which schedulers sign what tasks are told about their leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_KEY = "Ed25519; signs grants; NULL until a scheduler has started"


def upgrade() -> None:
    """Add the column; it is empty until the next start of a scheduler."""
    op.add_column("hetero_state", sa.Column("grant_key", sa.String(64), nullable=True, comment=_KEY))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("hetero_state", "grant_key")
