"""Airflow's metadata database, which has the store's tables."""

from sqlalchemy import Engine


def airflow_engine() -> Engine:
    """This process's engine of Airflow's metadata database."""
    from airflow import settings

    assert settings.engine is not None, "Airflow opens its database first"
    return settings.engine
