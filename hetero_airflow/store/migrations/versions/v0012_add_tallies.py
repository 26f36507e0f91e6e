"""Add the tallies, the model of a lease's devices, and when a request was submitted again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from hetero_airflow.store.utc_time import UtcDateTime

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and the columns. Nothing is counted of what happened before."""
    op.create_table(
        "hetero_tally",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("label", sa.String(400), nullable=False),
        sa.Column(
            "bucket", sa.String(16), nullable=False, comment="Upper bound in seconds; empty if no time is measured"
        ),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("total_ms", sa.BigInteger, nullable=False, comment="Sum of the measured times"),
        sa.PrimaryKeyConstraint("name", "label", "bucket", name="hetero_tally_pkey"),
        comment="How often things happened; outlives their rows",
    )
    model = sa.Column(
        "device_model", sa.String(400), comment="vendor/kind/model of its first accelerator, or of its CPU"
    )
    op.add_column("hetero_lease", model)
    again = sa.Column("resubmitted_at", UtcDateTime, comment="When it began to wait again; NULL the first time")
    op.add_column("hetero_request", again)


def downgrade() -> None:
    """Drop them."""
    op.drop_column("hetero_request", "resubmitted_at")  # not in a batch: its copy drops the rows that refer to it
    op.drop_column("hetero_lease", "device_model")
    op.drop_table("hetero_tally")
