"""Runs the migrations on the engine of `HeteroDBManager`, or on ``-x url=…`` from the command line."""

from typing import Any

from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from hetero_airflow.store import tables


def _is_ours(_object: object, name: str | None, type_: str, *_: object) -> bool:
    """Whether a table is one of this project; Airflow's tables are in the same database."""
    return type_ != "table" or name in tables.metadata.tables


def _run() -> None:
    options: dict[str, Any] = {
        "target_metadata": tables.metadata,
        "version_table": tables.VERSION_TABLE,
        "include_object": _is_ours,
        "render_as_batch": True,
    }
    url = context.get_x_argument(as_dictionary=True).get("url") or context.config.get_main_option("sqlalchemy.url", "")
    if context.is_offline_mode():
        context.configure(url=url, literal_binds=True, **options)
        with context.begin_transaction():
            context.run_migrations()
        return
    engine = context.config.attributes.get("engine") or create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection, transaction_per_migration=True, **options)
        with context.begin_transaction():
            context.run_migrations()


_run()
