"""Add which physical device a worker reports, so that two workers on one machine don't lease it at the same time."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_IS_HELD = sa.text("held_id IS NOT NULL")

_UUID = "_" * 8 + "-" + "-".join(["_" * 4] * 3) + "-" + "_" * 12
"""The shape of a UUID, for LIKE."""


def upgrade() -> None:
    """Add the columns. Leased GPUs with a UUID are held at once; the next inventories tell the other devices' ids.

    Where two workers have leased one GPU until now, the first one holds it.
    """
    op.add_column(
        "hetero_device",
        sa.Column(
            "physical_id",
            sa.String(512),
            nullable=True,
            comment="The same for all workers that report this device; NULL for a CPU",
        ),
    )
    op.add_column(
        "hetero_device",
        sa.Column(
            "reported_since",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When its worker first reported it with this physical_id",
        ),
    )
    op.add_column(
        "hetero_device",
        sa.Column("held_id", sa.String(512), nullable=True, comment="The physical_id while the device is leased"),
    )
    op.execute(
        f"UPDATE hetero_device SET physical_id = id WHERE id LIKE 'GPU-{_UUID}' OR id LIKE 'MIG-{_UUID}'"  # noqa: S608
    )
    op.execute(
        "UPDATE hetero_device SET held_id = physical_id WHERE used_milli > 0 AND worker_id = (SELECT min(one.worker_id)"
        " FROM hetero_device AS one WHERE one.physical_id = hetero_device.physical_id AND one.used_milli > 0)"
    )
    op.create_index(
        "hetero_device_held_id_idx",
        "hetero_device",
        ["held_id"],
        unique=True,
        sqlite_where=_IS_HELD,
        postgresql_where=_IS_HELD,
    )


def downgrade() -> None:
    """Drop the columns; two workers can lease one device again."""
    op.drop_index("hetero_device_held_id_idx", "hetero_device")
    op.drop_column("hetero_device", "held_id")
    op.drop_column("hetero_device", "reported_since")
    op.drop_column("hetero_device", "physical_id")
