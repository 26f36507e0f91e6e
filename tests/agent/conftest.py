"""The real server of `tests/web`."""

from tests.web.conftest import engine, server, sqlite_engine, store

__all__ = ["engine", "server", "sqlite_engine", "store"]
