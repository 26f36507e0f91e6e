"""Lets `airflow db migrate` create and change the store's tables."""

from __future__ import annotations

from pathlib import Path

from airflow import settings
from airflow.utils.db_manager import BaseDBManager
from alembic.config import Config

from hetero_airflow import store
from hetero_airflow.store import tables

_STORE = Path(store.__file__).parent


class HeteroDBManager(BaseDBManager):
    """Airflow's hook for the tables of a provider, under ``db-managers`` in the provider info."""

    metadata = tables.metadata
    migration_dir = str(_STORE / "migrations")
    alembic_file = str(_STORE / "alembic.ini")
    version_table_name = tables.VERSION_TABLE
    supports_table_dropping = True

    def get_alembic_config(self) -> Config:
        """Alembic's configuration with Airflow's engine: a URL alone would lose the connection arguments."""
        config: Config = super().get_alembic_config()  # type: ignore[no-untyped-call]
        config.attributes["engine"] = settings.engine
        return config
