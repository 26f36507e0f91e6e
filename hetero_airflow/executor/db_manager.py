"""Lets `airflow db migrate` create and change the store's tables."""

from pathlib import Path
from typing import Any

from airflow import settings
from airflow.utils.db_manager import BaseDBManager
from alembic.config import Config

from hetero_airflow import store
from hetero_airflow.errors import StoreError
from hetero_airflow.store import tables

_STORE = Path(store.__file__).parent


class HeteroDBManager(BaseDBManager):
    """Airflow's hook for the tables of a provider, under ``db-managers`` in the provider info."""

    metadata = tables.metadata
    migration_dir = str(_STORE / "migrations")
    alembic_file = str(_STORE / "alembic.ini")
    version_table_name = tables.VERSION_TABLE
    supports_table_dropping = True

    def upgradedb(self, *args: Any, **kwargs: Any) -> None:
        """Create the tables, or change those of an earlier release.

        :raises StoreError: a version made them that this one does not know
        """
        found = self.get_current_revision()  # type: ignore[no-untyped-call]
        if found and found not in {script.revision for script in self.get_script_object().walk_revisions()}:
            raise StoreError(
                f"to migrate the tables of the version {found}",
                found="that a newer or an unreleased version made them",
                remedy="Install the version that made them. Tables of an unreleased version can't be changed: to start "
                "anew, stop all schedulers and agents, drop the tables whose names begin with hetero_, and run "
                "`airflow db migrate`. Leases, learned speeds, enrolled agents and the history of the devices are lost "
                "then; DAGs and their runs are in other tables",
            )
        super().upgradedb(*args, **kwargs)  # type: ignore[no-untyped-call]

    def get_alembic_config(self) -> Config:
        """Alembic's configuration with Airflow's engine: a URL alone would lose the connection arguments."""
        config: Config = super().get_alembic_config()  # type: ignore[no-untyped-call]
        config.attributes["engine"] = settings.engine
        return config
