"""Airflow's pool of device tasks."""

from contextlib import suppress

from airflow.models.pool import Pool
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError


def ensure_pool(name: str) -> None:
    """Create the pool of device tasks. They need their own: a waiting device task is QUEUED and takes a slot."""
    pool = Pool(pool=name, slots=-1, description="Tasks that wait for or use devices", include_deferred=False)
    with suppress(IntegrityError), create_session(scoped=False) as session:  # another scheduler may be faster
        if session.scalar(select(Pool).where(Pool.pool == name)) is None:
            session.add(pool)
