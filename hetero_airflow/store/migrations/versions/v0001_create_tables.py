"""Create all tables, with the one row of ``hetero_state``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.String(320)
NAME = sa.String(250)
WORD = sa.String(16)
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create them in the order of their foreign keys."""
    op.create_table(
        "hetero_dag",
        sa.Column("dag_id", NAME, nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False, comment="The greatest that one of its requests ever got"),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("dag_id", name="hetero_dag_pkey"),
        comment="Whose turn it is; outlives the leases",
    )
    op.create_index("hetero_dag_changed_idx", "hetero_dag", ["changed"], unique=False)
    op.create_table(
        "hetero_request",
        sa.Column("id", ID, nullable=False),
        sa.Column("dag_id", NAME, nullable=False),
        sa.Column("run_id", NAME, nullable=False),
        sa.Column("task_id", NAME, nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False, comment="The DeviceRequest, JSON"),
        sa.Column("weight", sa.BigInteger(), nullable=False),
        sa.Column("submitted_at", TIME, nullable=False),
        sa.Column("state", WORD, nullable=False, comment="waiting, placed or ended"),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column(
            "newest_decision",
            sa.String(length=64),
            nullable=True,
            comment="Digest of the newest decision since it was submitted",
        ),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="hetero_request_pkey"),
    )
    op.create_index("hetero_request_changed_idx", "hetero_request", ["changed"], unique=False)
    op.create_index(
        "hetero_request_dag_id_run_id_task_id_map_index_idx",
        "hetero_request",
        ["dag_id", "run_id", "task_id", "map_index"],
        unique=False,
    )
    op.create_index("hetero_request_state_ended_at_idx", "hetero_request", ["state", "ended_at"], unique=False)
    op.create_table(
        "hetero_state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False, comment="Grows with each change that a snapshot shows"),
        sa.Column("fence", sa.BigInteger(), nullable=False, comment="Token of the newest lease"),
        sa.Column(
            "pruned", sa.BigInteger(), nullable=False, comment="Sequence of the last deletion: older reads are void"
        ),
        sa.CheckConstraint("id = 1", name=op.f("hetero_state_one_row_check")),
        sa.PrimaryKeyConstraint("id", name="hetero_state_pkey"),
        comment="One row, which writers lock",
    )
    op.create_table(
        "hetero_worker",
        sa.Column("id", ID, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("inventory", sa.Text(), nullable=False, comment="The worker without its devices, JSON"),
        sa.Column("digest", sa.String(length=64), nullable=False, comment="Of the whole inventory as it was reported"),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="hetero_worker_pkey"),
    )
    op.create_index("hetero_worker_changed_idx", "hetero_worker", ["changed"], unique=False)
    op.create_table(
        "hetero_decision",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("request_id", ID, nullable=False),
        sa.Column("decided_at", TIME, nullable=False),
        sa.Column("outcome", WORD, nullable=False, comment="place, wait or refuse"),
        sa.Column("position", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True, comment="JSON"),
        sa.Column("nearest", sa.Text(), nullable=True),
        sa.Column("account", sa.Text(), nullable=False, comment="JSON"),
        sa.ForeignKeyConstraint(
            ["request_id"], ["hetero_request.id"], name="hetero_decision_request_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="hetero_decision_pkey"),
    )
    op.create_index("hetero_decision_request_id_id_idx", "hetero_decision", ["request_id", "id"], unique=False)
    op.create_table(
        "hetero_device",
        sa.Column("worker_id", ID, nullable=False),
        sa.Column("id", ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False, comment="In the worker's inventory"),
        sa.Column("inventory", sa.Text(), nullable=False, comment="The device, JSON"),
        sa.Column("kind", sa.String(length=128), nullable=False),
        sa.Column("leasable", sa.Boolean(), nullable=False),
        sa.Column("is_vanished", sa.Boolean(), nullable=False, comment="Goes when its last lease ends"),
        sa.Column("offered_milli", sa.Integer(), nullable=False),
        sa.Column(
            "offered_memory_bytes",
            sa.BigInteger(),
            nullable=True,
            comment="Of a CPU: host memory that leases share out",
        ),
        sa.Column(
            "capacity_milli",
            sa.Integer(),
            nullable=False,
            comment="What is offered, or what is used where that is more",
        ),
        sa.Column("capacity_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("used_milli", sa.Integer(), nullable=False),
        sa.Column("used_memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("last_granted_at", TIME, nullable=True),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "used_memory_bytes >= 0 AND (capacity_memory_bytes IS NULL OR used_memory_bytes <= capacity_memory_bytes)",
            name=op.f("hetero_device_memory_check"),
        ),
        sa.CheckConstraint("used_milli >= 0 AND used_milli <= capacity_milli", name=op.f("hetero_device_milli_check")),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["hetero_worker.id"], name="hetero_device_worker_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", "id", name="hetero_device_pkey"),
    )
    op.create_index("hetero_device_changed_idx", "hetero_device", ["changed"], unique=False)
    op.create_table(
        "hetero_lease",
        sa.Column("id", ID, nullable=False),
        sa.Column("request_id", ID, nullable=False),
        sa.Column("worker_id", ID, nullable=False),
        sa.Column("alternative", sa.Integer(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("granted_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["hetero_request.id"], name="hetero_lease_request_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="hetero_lease_pkey"),
        sa.UniqueConstraint("token", name="hetero_lease_token_key"),
    )
    op.create_index("hetero_lease_changed_idx", "hetero_lease", ["changed"], unique=False)
    op.create_index("hetero_lease_request_id_idx", "hetero_lease", ["request_id"], unique=False)
    op.create_index("hetero_lease_state_idx", "hetero_lease", ["state"], unique=False)
    op.create_table(
        "hetero_telemetry",
        sa.Column("worker_id", ID, nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
        sa.Column(
            "readings", sa.Text(), nullable=False, comment="The last readings of the worker's devices, a JSON list"
        ),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["hetero_worker.id"], name="hetero_telemetry_worker_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", name="hetero_telemetry_pkey"),
        comment="What changes with every heartbeat; no snapshot shows it",
    )
    op.create_table(
        "hetero_lease_device",
        sa.Column("lease_id", ID, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("worker_id", ID, nullable=False),
        sa.Column("device_id", ID, nullable=False),
        sa.Column("milli", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("cores", sa.Text(), nullable=False, comment="Ids of the CPU cores that the lease holds, a JSON list"),
        sa.Column("is_held", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["hetero_lease.id"], name="hetero_lease_device_lease_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("lease_id", "position", name="hetero_lease_device_pkey"),
        sa.UniqueConstraint("lease_id", "device_id", name="hetero_lease_device_lease_id_device_id_key"),
    )
    op.create_index(
        "hetero_lease_device_held_idx",
        "hetero_lease_device",
        ["worker_id", "device_id"],
        unique=False,
        sqlite_where=sa.text("is_held"),
        postgresql_where=sa.text("is_held"),
    )
    op.execute("INSERT INTO hetero_state (id, sequence, fence, pruned) VALUES (1, 0, 0, 0)")


def downgrade() -> None:
    """Drop them in the opposite order."""
    for name in (
        "hetero_lease_device", "hetero_telemetry", "hetero_lease", "hetero_device", "hetero_decision",
        "hetero_worker", "hetero_state", "hetero_request", "hetero_dag",
    ):  # fmt: skip
        op.drop_table(name)
