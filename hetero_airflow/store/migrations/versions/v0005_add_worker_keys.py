"""Add the keys of workers' agents, and the secrets for their enrolment."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_SECRET = "SHA-256 of the one-time secret that its agent enrols with"  # noqa: S105  a comment
_KEY = "Ed25519, 64 hexadecimal digits; NULL until its agent has enrolled"
_NONCE = "Of the newest request that was taken; older ones are replays"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "hetero_worker_key",
        sa.Column("worker_id", sa.String(320), nullable=False),
        sa.Column("secret_hash", sa.String(64), nullable=True, comment=_SECRET),
        sa.Column(
            "secret_until",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="After that, the secret is worth nothing",
        ),
        sa.Column("public_key", sa.String(64), nullable=True, comment=_KEY),
        sa.Column("enrolled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("nonce", sa.BigInteger(), nullable=False, comment=_NONCE),
        sa.Column(
            "instance",
            sa.String(32),
            nullable=False,
            comment="The process of its agent that speaks for it now",
        ),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", name=op.f("hetero_worker_key_pkey")),
        comment="Who may speak for a worker; outlives it",
    )
    op.create_index(op.f("hetero_worker_key_changed_idx"), "hetero_worker_key", ["changed"])


def downgrade() -> None:
    """Drop the table; agents have to enrol again."""
    op.drop_table("hetero_worker_key")
