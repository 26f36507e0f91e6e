"""The store: workers, requests, leases and decisions; exclusivity is a fact of the database.

====================== =============================================================================
``store.py``           the ports `Store`, `History` and `Presence`, and the events
``memory.py``          all as plain Python values: simulator and tests
``sql.py``             all in Airflow's database; ``sql_transaction.py`` (lock, errors), ``sql_events.py``,
                       ``sql_grants.py``, ``sql_leases.py``, ``sql_presence.py`` and ``sql_reading.py`` are its parts
``sql_given.py``       one statement for many rows; ``sql_books.py``: what of a plan still fits
``sql_keys.py``        who may speak for a worker, and what agents tell
``tables.py``          the tables; ``migrations/`` makes them
``view.py``            the live part of the world, from which both make their snapshots
``inventory.py``, ``leases.py``, ``cores.py``, ``codec.py``  what both decide in the same way; pure
====================== =============================================================================

Writers queue up on one row (``hetero_state``) instead of each locking what it touches. Rejected: row
locks in a fixed order (a plan touches workers, requests and devices; one statement out of order is a
deadlock), serialisable transactions (the retries fall on the caller, and SQLite has none), and a lock
in a process (there may be several schedulers). ``tests/benchmarks/bench_store.py`` prints what it costs.
"""
