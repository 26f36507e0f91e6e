"""Create all tables, with the one row of ``hetero_state``.

Until the first release they are those of `store.tables`, and the revision is a digest of their columns: so
`HeteroDBManager` recognises a database that another unreleased version has made. A release writes the tables down here
and gives the revision a number.
"""

from hashlib import sha256

from alembic import op
from alembic.operations.ops import CreateIndexOp, CreateTableOp

from hetero_airflow.store import tables

_COLUMNS = ", ".join(
    f"{column} {column.type} {column.nullable}" for table in tables.metadata.sorted_tables for column in table.columns
)

revision = f"unreleased_{sha256(_COLUMNS.encode()).hexdigest()[:12]}"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create them in the order of their foreign keys."""
    for table in tables.metadata.sorted_tables:
        op.invoke(CreateTableOp.from_table(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            op.invoke(CreateIndexOp.from_index(index))
    op.execute(tables.INSERT_STATE)


def downgrade() -> None:
    """Drop them in the opposite order."""
    for table in reversed(tables.metadata.sorted_tables):
        op.drop_table(table.name)
