"""The store's tables in Airflow's metadata database, all named ``hetero_…``.

The rows that a snapshot shows have a column `changed`: the sequence of their last change, so that a snapshot reads only
the rows that changed since the snapshot before. JSON is stored as text, which pydantic reads; nothing is pickled.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    event,
    text,
)
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeDecorator

VERSION_TABLE = "hetero_alembic_version"

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time, stored in UTC; in SQLite as a text without a zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a time without a zone, since its zone would be unknown later."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise TypeError(f"the time {value} has no zone; give an aware one, such as Clock.now()")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The aware time in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


ID = String(320)
NAME = String(250)
WORD = String(16)

state = Table(
    "hetero_state",
    metadata,
    Column("id", Integer, autoincrement=False),
    Column("sequence", BigInteger, nullable=False, comment="Grows with each change that a snapshot shows"),
    Column("fence", BigInteger, nullable=False, comment="Token of the newest lease"),
    Column("pruned", BigInteger, nullable=False, comment="Sequence of the last deletion: older reads are void"),
    PrimaryKeyConstraint("id"),
    CheckConstraint("id = 1", name="one_row"),
    comment="One row, which writers lock",
)

worker = Table(
    "hetero_worker",
    metadata,
    Column("id", ID),
    Column("state", WORD, nullable=False),
    Column("inventory", Text, nullable=False, comment="The worker without its devices, JSON"),
    Column("digest", String(64), nullable=False, comment="Of the whole inventory as it was reported"),
    Column("changed", BigInteger, nullable=False),
    PrimaryKeyConstraint("id"),
    Index(None, "changed"),
)

device = Table(
    "hetero_device",
    metadata,
    Column("worker_id", ID),
    Column("id", ID),
    Column("position", Integer, nullable=False, comment="In the worker's inventory"),
    Column("inventory", Text, nullable=False, comment="The device, JSON"),
    Column("kind", String(128), nullable=False),
    Column("leasable", Boolean, nullable=False),
    Column("is_vanished", Boolean, nullable=False, comment="Goes when its last lease ends"),
    Column("offered_milli", Integer, nullable=False),
    Column("offered_memory_bytes", BigInteger, comment="Of a CPU: host memory that leases share out"),
    Column("capacity_milli", Integer, nullable=False, comment="What is offered, or what is used where that is more"),
    Column("capacity_memory_bytes", BigInteger),
    Column("used_milli", Integer, nullable=False),
    Column("used_memory_bytes", BigInteger, nullable=False),
    Column("last_granted_at", UtcDateTime),
    Column("changed", BigInteger, nullable=False),
    PrimaryKeyConstraint("worker_id", "id"),
    ForeignKeyConstraint(["worker_id"], ["hetero_worker.id"], ondelete="CASCADE"),
    CheckConstraint("used_milli >= 0 AND used_milli <= capacity_milli", name="milli"),
    CheckConstraint(
        "used_memory_bytes >= 0 AND (capacity_memory_bytes IS NULL OR used_memory_bytes <= capacity_memory_bytes)",
        name="memory",
    ),
    Index(None, "changed"),
)

telemetry = Table(
    "hetero_telemetry",
    metadata,
    Column("worker_id", ID),
    Column("seen_at", UtcDateTime, nullable=False),
    Column("readings", Text, nullable=False, comment="The last readings of the worker's devices, a JSON list"),
    Column("leases", Text, comment="Ids of the leases whose processes are there, a JSON list; NULL if no agent says"),
    PrimaryKeyConstraint("worker_id"),
    ForeignKeyConstraint(["worker_id"], ["hetero_worker.id"], ondelete="CASCADE"),
    comment="What changes with every heartbeat; no snapshot shows it",
)

server = Table(
    "hetero_server",
    metadata,
    Column("id", Integer, autoincrement=False),
    Column("since", UtcDateTime, nullable=False, comment="No API server was away since then"),
    Column("seen_at", UtcDateTime, nullable=False),
    PrimaryKeyConstraint("id"),
    CheckConstraint("id = 1", name="one_row"),
    comment="One row, once an API server has said that it is there",
)

hold = Table(
    "hetero_bar",
    metadata,
    Column("worker_id", ID),
    Column("device_id", ID, comment="Empty for the whole worker"),
    Column("kind", WORD, comment="drained or quarantined"),
    Column("cause", Text, nullable=False),
    Column("since", UtcDateTime, nullable=False),
    Column("returns", Text, nullable=False, comment="What brings it back"),
    Column("until", UtcDateTime),
    Column("moves", Boolean, nullable=False, comment="Whether tasks that run there shall go on elsewhere"),
    PrimaryKeyConstraint("worker_id", "device_id", "kind"),
    comment="Devices that get no new task; a change here changes the worker's row too",
)

health = Table(
    "hetero_health",
    metadata,
    Column("worker_id", ID),
    Column("device_id", ID),
    Column("record", Text, nullable=False, comment="State, strikes and recent errors, JSON"),
    PrimaryKeyConstraint("worker_id", "device_id"),
    comment="Devices that ever had an error and are not forgiven",
)

worker_key = Table(
    "hetero_worker_key",
    metadata,
    Column("worker_id", ID),
    Column("secret_hash", String(64), comment="SHA-256 of the one-time secret that its agent enrols with"),
    Column("secret_until", UtcDateTime, comment="After that, the secret is worth nothing"),
    Column("public_key", String(64), comment="Ed25519, 64 hexadecimal digits; NULL until its agent has enrolled"),
    Column("enrolled_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("nonce", BigInteger, nullable=False, comment="Of the newest request that was taken; older ones are replays"),
    Column("instance", String(32), nullable=False, comment="The process of its agent that speaks for it now"),
    Column("changed", BigInteger, nullable=False),
    PrimaryKeyConstraint("worker_id"),
    Index(None, "changed"),
    comment="Who may speak for a worker; outlives it",
)

request = Table(
    "hetero_request",
    metadata,
    Column("id", ID),
    Column("dag_id", NAME, nullable=False),
    Column("run_id", NAME, nullable=False),
    Column("task_id", NAME, nullable=False),
    Column("map_index", Integer, nullable=False),
    Column("try_number", Integer, nullable=False),
    Column("request", Text, nullable=False, comment="The DeviceRequest, JSON"),
    Column("weight", BigInteger, nullable=False),
    Column("submitted_at", UtcDateTime, nullable=False),
    Column(
        "served", Text, nullable=False, server_default="{}", comment="Device class → seconds held before, a JSON object"
    ),
    Column("gang", ID, comment="Placed together with the others of this name"),
    Column("gang_size", Integer, nullable=False, server_default="1"),
    Column("state", WORD, nullable=False, comment="waiting, placed or ended"),
    Column("ended_at", UtcDateTime),
    Column("cause", Text, nullable=False),
    Column("newest_decision", String(64), comment="Digest of the newest decision since it was submitted"),
    Column("changed", BigInteger, nullable=False),
    PrimaryKeyConstraint("id"),
    Index(None, "changed"),
    Index(None, "state", "ended_at"),
    Index(None, "dag_id", "run_id", "task_id", "map_index"),
)

dag = Table(
    "hetero_dag",
    metadata,
    Column("dag_id", NAME),
    Column("token", BigInteger, nullable=False, comment="The greatest that one of its requests ever got"),
    Column("changed", BigInteger, nullable=False),
    PrimaryKeyConstraint("dag_id"),
    Index(None, "changed"),
    comment="Whose turn it is; outlives the leases",
)

lease = Table(
    "hetero_lease",
    metadata,
    Column("id", ID),
    Column("request_id", ID, nullable=False),
    Column("worker_id", ID, nullable=False),
    Column("alternative", Integer, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("state", WORD, nullable=False),
    Column("granted_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("saved_at", UtcDateTime, comment="When its task last published a checkpoint"),
    Column("ended_at", UtcDateTime),
    Column("outcome", WORD, comment="How its task stood then; NULL for one that never ran, or if nobody knows"),
    Column("cause", Text, nullable=False),
    Column("changed", BigInteger, nullable=False),
    PrimaryKeyConstraint("id"),
    UniqueConstraint("token"),
    ForeignKeyConstraint(["request_id"], ["hetero_request.id"], ondelete="CASCADE"),
    Index(None, "changed"),
    Index(None, "state"),
    Index(None, "request_id"),
)

lease_device = Table(
    "hetero_lease_device",
    metadata,
    Column("lease_id", ID),
    Column("position", Integer, nullable=False),
    Column("worker_id", ID, nullable=False),
    Column("device_id", ID, nullable=False),
    Column("milli", Integer, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("cores", Text, nullable=False, comment="Ids of the CPU cores that the lease holds, a JSON list"),
    Column("is_held", Boolean, nullable=False),
    PrimaryKeyConstraint("lease_id", "position"),
    ForeignKeyConstraint(["lease_id"], ["hetero_lease.id"], ondelete="CASCADE"),
    UniqueConstraint("lease_id", "device_id"),
)
Index(
    "hetero_lease_device_held_idx",
    lease_device.c.worker_id,
    lease_device.c.device_id,
    sqlite_where=lease_device.c.is_held,
    postgresql_where=lease_device.c.is_held,
)

decision = Table(
    "hetero_decision",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite")),
    Column("request_id", ID, ForeignKey("hetero_request.id", ondelete="CASCADE"), nullable=False),
    Column("decided_at", UtcDateTime, nullable=False),
    Column("outcome", WORD, nullable=False, comment="place, wait or refuse"),
    Column("position", Integer),
    Column("reason", Text, comment="JSON"),
    Column("nearest", Text),
    Column("account", Text, nullable=False, comment="JSON"),
    PrimaryKeyConstraint("id"),
    Index(None, "request_id", "id"),
)


@event.listens_for(state, "after_create")
def insert_state(target: Table, connection: Connection, **_: object) -> None:
    """Insert the one row when the table is created from the metadata; the first migration does the same."""
    connection.execute(text("INSERT INTO hetero_state (id, sequence, fence, pruned) VALUES (1, 0, 0, 0)"))
