"""The store's tables in Airflow's metadata database, all named ``hetero_…``.

The rows that a snapshot shows have a column `changed`: the sequence of their last change, so that a snapshot reads only
the rows that changed since the snapshot before. JSON is stored as text, which pydantic reads; nothing is pickled.
"""

import sqlalchemy as sa

from hetero_airflow.store.utc_time import UtcDateTime

VERSION_TABLE = "hetero_alembic_version"

metadata = sa.MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)


ID = sa.String(320)
NAME = sa.String(250)
WORD = sa.String(16)
PHYSICAL_ID = sa.String(512)
DEVICE_CLASS = sa.String(512)
KIND = sa.String(128)
_TIME = "In millionths of a second times thousandths of a device"

state = sa.Table(
    "hetero_state",
    metadata,
    sa.Column("id", sa.Integer, autoincrement=False),
    sa.Column("sequence", sa.BigInteger, nullable=False, comment="Grows with each change that a snapshot shows"),
    sa.Column("fence", sa.BigInteger, nullable=False, comment="Token of the newest lease"),
    sa.Column("pruned", sa.BigInteger, nullable=False, comment="Sequence of the last deletion: older reads are void"),
    sa.Column("grant_key", sa.String(64), comment="Ed25519; signs grants; NULL until a scheduler has started"),
    sa.Column("usage_until", UtcDateTime, comment="What was before it is in the sums of days; NULL if nothing is"),
    sa.PrimaryKeyConstraint("id"),
    sa.CheckConstraint("id = 1", name="one_row"),
    comment="One row, which writers lock",
)

worker = sa.Table(
    "hetero_worker",
    metadata,
    sa.Column("id", ID),
    sa.Column("state", WORD, nullable=False),
    sa.Column("inventory", sa.Text, nullable=False, comment="The worker without its devices, JSON"),
    sa.Column("digest", sa.String(64), nullable=False, comment="Of the whole inventory as it was reported"),
    sa.Column("changed", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("id"),
    sa.Index(None, "changed"),
)

device = sa.Table(
    "hetero_device",
    metadata,
    sa.Column("worker_id", ID),
    sa.Column("id", ID),
    sa.Column("position", sa.Integer, nullable=False, comment="In the worker's inventory"),
    sa.Column("inventory", sa.Text, nullable=False, comment="The device, JSON"),
    sa.Column("kind", KIND, nullable=False),
    sa.Column("leasable", sa.Boolean, nullable=False),
    sa.Column("is_vanished", sa.Boolean, nullable=False, comment="Goes when its last lease ends"),
    sa.Column("offered_milli", sa.Integer, nullable=False),
    sa.Column("offered_memory_bytes", sa.BigInteger, comment="Of a CPU: host memory that leases share out"),
    sa.Column(
        "capacity_milli", sa.Integer, nullable=False, comment="What is offered, or what is used where that is more"
    ),
    sa.Column("capacity_memory_bytes", sa.BigInteger),
    sa.Column("used_milli", sa.Integer, nullable=False),
    sa.Column("used_memory_bytes", sa.BigInteger, nullable=False),
    sa.Column("last_granted_at", UtcDateTime),
    sa.Column("physical_id", PHYSICAL_ID, comment="The same for all workers that report this device; NULL for a CPU"),
    sa.Column("reported_since", UtcDateTime, comment="When its worker first reported it with this physical_id"),
    sa.Column("held_id", PHYSICAL_ID, comment="The physical_id while the device is leased"),
    sa.Column("changed", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("worker_id", "id"),
    sa.ForeignKeyConstraint(["worker_id"], ["hetero_worker.id"], ondelete="CASCADE"),
    sa.CheckConstraint("used_milli >= 0 AND used_milli <= capacity_milli", name="milli"),
    sa.CheckConstraint(
        "used_memory_bytes >= 0 AND (capacity_memory_bytes IS NULL OR used_memory_bytes <= capacity_memory_bytes)",
        name="memory",
    ),
    sa.Index(None, "changed"),
)

sa.Index(
    "hetero_device_held_id_idx",
    device.c.held_id,
    unique=True,
    sqlite_where=device.c.held_id.is_not(None),
    postgresql_where=device.c.held_id.is_not(None),
)

telemetry = sa.Table(
    "hetero_telemetry",
    metadata,
    sa.Column("worker_id", ID),
    sa.Column("seen_at", UtcDateTime, nullable=False),
    sa.Column("readings", sa.Text, nullable=False, comment="The last readings of the worker's devices, a JSON list"),
    sa.Column(
        "leases", sa.Text, comment="Ids of the leases whose processes are there, a JSON list; NULL if no agent says"
    ),
    sa.Column("data", sa.Text, comment="What the host's data cache holds, JSON; NULL until its host says"),
    sa.PrimaryKeyConstraint("worker_id"),
    sa.ForeignKeyConstraint(["worker_id"], ["hetero_worker.id"], ondelete="CASCADE"),
    comment="What changes with every heartbeat; no snapshot shows it",
)

server = sa.Table(
    "hetero_server",
    metadata,
    sa.Column("id", sa.Integer, autoincrement=False),
    sa.Column("since", UtcDateTime, nullable=False, comment="No API server was away since then"),
    sa.Column("seen_at", UtcDateTime, nullable=False),
    sa.PrimaryKeyConstraint("id"),
    sa.CheckConstraint("id = 1", name="one_row"),
    comment="One row, once an API server has said that it is there",
)

scheduler = sa.Table(
    "hetero_scheduler",
    metadata,
    sa.Column("id", ID, comment="Host and process"),
    sa.Column("decided_at", UtcDateTime, nullable=False, comment="The end of its last cycle, some seconds late"),
    sa.PrimaryKeyConstraint("id"),
    comment="When each scheduler last decided; stays when the scheduler dies",
)

hold = sa.Table(
    "hetero_bar",
    metadata,
    sa.Column("worker_id", ID),
    sa.Column("device_id", ID, comment="Empty for the whole worker"),
    sa.Column("kind", WORD, comment="drained or quarantined"),
    sa.Column("cause", sa.Text, nullable=False),
    sa.Column("since", UtcDateTime, nullable=False),
    sa.Column("returns", sa.Text, nullable=False, comment="What brings it back"),
    sa.Column("until", UtcDateTime),
    sa.Column("moves", sa.Boolean, nullable=False, comment="Whether tasks that run there shall go on elsewhere"),
    sa.PrimaryKeyConstraint("worker_id", "device_id", "kind"),
    comment="Devices that get no new task; a change here changes the worker's row too",
)

health = sa.Table(
    "hetero_health",
    metadata,
    sa.Column("worker_id", ID),
    sa.Column("device_id", ID),
    sa.Column("record", sa.Text, nullable=False, comment="State, strikes and recent errors, JSON"),
    sa.PrimaryKeyConstraint("worker_id", "device_id"),
    comment="Devices that ever had an error and are not forgiven",
)

worker_key = sa.Table(
    "hetero_worker_key",
    metadata,
    sa.Column("worker_id", ID),
    sa.Column("secret_hash", sa.String(64), comment="SHA-256 of the one-time secret that its agent enrols with"),
    sa.Column("secret_until", UtcDateTime, comment="After that, the secret is worth nothing"),
    sa.Column("public_key", sa.String(64), comment="Ed25519, 64 hexadecimal digits; NULL until its agent has enrolled"),
    sa.Column("enrolled_at", UtcDateTime),
    sa.Column("revoked_at", UtcDateTime),
    sa.Column("joined_by", sa.String(512), comment="The join token or service account that its agent joined with"),
    sa.Column(
        "nonce", sa.BigInteger, nullable=False, comment="Of the newest request that was taken; older ones are replays"
    ),
    sa.Column("instance", sa.String(32), nullable=False, comment="The process of its agent that speaks for it now"),
    sa.Column("changed", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("worker_id"),
    sa.Index(None, "changed"),
    comment="Who may speak for a worker; outlives it",
)

join_token = sa.Table(
    "hetero_join_token",
    metadata,
    sa.Column("id", sa.String(16)),
    sa.Column("secret_hash", sa.String(64), nullable=False, comment="SHA-256 of the secret, which nobody keeps here"),
    sa.Column("names", sa.String(256), nullable=False, comment="A pattern of the workers' names"),
    sa.Column("max_workers", sa.Integer, nullable=False, comment="At the same time"),
    sa.Column("until", UtcDateTime, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("revoked_at", UtcDateTime),
    sa.PrimaryKeyConstraint("id"),
    sa.Index(None, "secret_hash", unique=True),
    comment="With one, workers enrol by themselves",
)

request = sa.Table(
    "hetero_request",
    metadata,
    sa.Column("id", ID),
    sa.Column("dag_id", NAME, nullable=False),
    sa.Column("run_id", NAME, nullable=False),
    sa.Column("task_id", NAME, nullable=False),
    sa.Column("map_index", sa.Integer, nullable=False),
    sa.Column("try_number", sa.Integer, nullable=False),
    sa.Column("request", sa.Text, nullable=False, comment="The DeviceRequest, JSON"),
    sa.Column("weight", sa.BigInteger, nullable=False),
    sa.Column("submitted_at", UtcDateTime, nullable=False),
    sa.Column("resubmitted_at", UtcDateTime, comment="When it began to wait again after a lease; NULL before"),
    sa.Column(
        "served",
        sa.Text,
        nullable=False,
        server_default="{}",
        comment="Device class → seconds held before, a JSON object",
    ),
    sa.Column(
        "interruptions",
        sa.Integer,
        nullable=False,
        server_default="0",
        comment="How often it lost its devices before its end and went on later",
    ),
    sa.Column("gang", ID, comment="Placed together with the others of this name"),
    sa.Column("gang_size", sa.Integer, nullable=False, server_default="1"),
    sa.Column(
        "is_paused", sa.Boolean, nullable=False, server_default=sa.false(), comment="It waits and gets no devices"
    ),
    sa.Column("state", WORD, nullable=False, comment="waiting, placed or ended"),
    sa.Column("ended_at", UtcDateTime),
    sa.Column("cause", sa.Text, nullable=False),
    sa.Column("newest_decision", sa.String(64), comment="Digest of the newest decision since it was submitted"),
    sa.Column("changed", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("id"),
    sa.Index(None, "changed"),
    sa.Index(None, "state", "ended_at"),
    sa.Index(None, "dag_id", "run_id", "task_id", "map_index"),
)

dag = sa.Table(
    "hetero_dag",
    metadata,
    sa.Column("dag_id", NAME),
    sa.Column("token", sa.BigInteger, nullable=False, comment="The greatest that one of its requests ever got"),
    sa.Column("changed", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("dag_id"),
    sa.Index(None, "changed"),
    comment="Whose turn it is; outlives the leases",
)

lease = sa.Table(
    "hetero_lease",
    metadata,
    sa.Column("id", ID),
    sa.Column("request_id", ID, nullable=False),
    sa.Column("worker_id", ID, nullable=False),
    sa.Column("alternative", sa.Integer, nullable=False),
    sa.Column("device_model", sa.String(400), comment="vendor/kind/model of its first accelerator, or of its CPU"),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("state", WORD, nullable=False),
    sa.Column("granted_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
    sa.Column("saved_at", UtcDateTime, comment="When its task last published a checkpoint"),
    sa.Column("starter", NAME, comment="The only scheduler that starts its task; NULL until one claims the start"),
    sa.Column("ended_at", UtcDateTime),
    sa.Column("outcome", WORD, comment="How its task stood then; NULL for one that never ran, or if nobody knows"),
    sa.Column("cause", sa.Text, nullable=False),
    sa.Column("changed", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("id"),
    sa.UniqueConstraint("token"),
    sa.ForeignKeyConstraint(["request_id"], ["hetero_request.id"], ondelete="CASCADE"),
    sa.Index(None, "changed"),
    sa.Index(None, "state"),
    sa.Index(None, "request_id"),
)

lease_device = sa.Table(
    "hetero_lease_device",
    metadata,
    sa.Column("lease_id", ID),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("worker_id", ID, nullable=False),
    sa.Column("device_id", ID, nullable=False),
    sa.Column("milli", sa.Integer, nullable=False),
    sa.Column("memory_bytes", sa.BigInteger, nullable=False),
    sa.Column("cores", sa.Text, nullable=False, comment="Ids of the CPU cores that the lease holds, a JSON list"),
    sa.Column("is_held", sa.Boolean, nullable=False),
    sa.PrimaryKeyConstraint("lease_id", "position"),
    sa.ForeignKeyConstraint(["lease_id"], ["hetero_lease.id"], ondelete="CASCADE"),
    sa.UniqueConstraint("lease_id", "device_id"),
)
sa.Index(
    "hetero_lease_device_held_idx",
    lease_device.c.worker_id,
    lease_device.c.device_id,
    sqlite_where=lease_device.c.is_held,
    postgresql_where=lease_device.c.is_held,
)

speed = sa.Table(
    "hetero_speed",
    metadata,
    sa.Column("dag_id", NAME),
    sa.Column("task_id", NAME),
    sa.Column("device_class", DEVICE_CLASS),
    sa.Column("record", sa.Text, nullable=False, comment="The measured speed, and which leases it counts, JSON"),
    sa.Column("measured_at", UtcDateTime, nullable=False),
    sa.Column("changed", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("dag_id", "task_id", "device_class"),
    sa.Index(None, "changed"),
    comment="Steps per second that tasks reported; outlives their leases",
)

tally = sa.Table(
    "hetero_tally",
    metadata,
    sa.Column("name", WORD),
    sa.Column("label", sa.String(400)),
    sa.Column("bucket", WORD, comment="Upper bound in seconds; empty if no time is measured"),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("total_ms", sa.BigInteger, nullable=False, comment="Sum of the measured times"),
    sa.PrimaryKeyConstraint("name", "label", "bucket"),
    comment="How often things happened; outlives their rows",
)

device_presence = sa.Table(
    "hetero_device_presence",
    metadata,
    sa.Column("worker_id", ID),
    sa.Column("device_id", ID),
    sa.Column("since", UtcDateTime),
    sa.Column("until", UtcDateTime, comment="NULL while it goes on"),
    sa.Column("device_class", DEVICE_CLASS, nullable=False),
    sa.Column("kind", KIND, nullable=False),
    sa.Column("capacity_milli", sa.Integer, nullable=False),
    sa.Column("is_on_hold", sa.Boolean, nullable=False, comment="It gets no new task: a hold, or a problem"),
    sa.PrimaryKeyConstraint("worker_id", "device_id", "since"),
    sa.Index(None, "until"),
    comment="When online workers reported which devices; outlives the workers",
)
sa.Index(
    "hetero_device_presence_open_idx",
    device_presence.c.worker_id,
    device_presence.c.device_id,
    unique=True,
    sqlite_where=device_presence.c.until.is_(None),
    postgresql_where=device_presence.c.until.is_(None),
)

device_day = sa.Table(
    "hetero_device_day",
    metadata,
    sa.Column("day", sa.Date),
    sa.Column("worker_id", ID),
    sa.Column("device_id", ID),
    sa.Column("device_class", DEVICE_CLASS),
    sa.Column("kind", KIND, nullable=False),
    sa.Column("existed", sa.BigInteger, nullable=False, comment=_TIME),
    sa.Column("held", sa.BigInteger, nullable=False, comment=_TIME),
    sa.Column("on_hold", sa.BigInteger, nullable=False, comment=_TIME),
    sa.PrimaryKeyConstraint("day", "worker_id", "device_id", "device_class"),
    comment="What each device did on a day (UTC); outlives the leases",
)

task_day = sa.Table(
    "hetero_task_day",
    metadata,
    sa.Column("day", sa.Date),
    sa.Column("dag_id", NAME),
    sa.Column("task_id", NAME),
    sa.Column("device_class", DEVICE_CLASS),
    sa.Column("kind", KIND, nullable=False),
    sa.Column("held", sa.BigInteger, nullable=False, comment=_TIME),
    sa.Column("leases", sa.BigInteger, nullable=False, comment="Leases that began on this day"),
    sa.PrimaryKeyConstraint("day", "dag_id", "task_id", "device_class"),
    comment="What the tries of each task held on a day (UTC); outlives the leases",
)

decision = sa.Table(
    "hetero_decision",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite")),
    sa.Column("request_id", ID, sa.ForeignKey("hetero_request.id", ondelete="CASCADE"), nullable=False),
    sa.Column("decided_at", UtcDateTime, nullable=False),
    sa.Column("outcome", WORD, nullable=False, comment="place, wait or refuse"),
    sa.Column("position", sa.Integer),
    sa.Column("reason", sa.Text, comment="JSON"),
    sa.Column("nearest", sa.Text),
    sa.Column("account", sa.Text, nullable=False, comment="JSON"),
    sa.PrimaryKeyConstraint("id"),
    sa.Index(None, "request_id", "id"),
)


story = sa.Table(
    "hetero_story",
    metadata,
    sa.Column("request_id", ID, sa.ForeignKey("hetero_request.id", ondelete="CASCADE")),
    sa.Column("transitions", sa.Text, nullable=False, comment="The newest of its runs, a JSON list"),
    sa.PrimaryKeyConstraint("request_id"),
    comment="How the runs of a request went on; no snapshot shows it",
)


INSERT_STATE = sa.text("INSERT INTO hetero_state (id, sequence, fence, pruned) VALUES (1, 0, 0, 0)")


@sa.event.listens_for(state, "after_create")
def insert_state(target: sa.Table, connection: sa.Connection, **_: object) -> None:
    """Insert the one row when the table is created from the metadata; the migration does the same."""
    connection.execute(INSERT_STATE)
