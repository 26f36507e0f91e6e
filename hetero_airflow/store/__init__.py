"""The store: workers, requests, leases and decisions. The database itself prevents that a device is leased twice.

Only the executor, the API server and the CLI open the store in the database; task code never does.

Writers wait for one row (``hetero_state``) instead of locking each row that they change. Rejected: row locks in a fixed
order (a plan changes workers, requests and devices; one statement out of order is a deadlock), serialisable
transactions (the caller has to retry, and SQLite has none), and a lock in a process (there may be several schedulers).
``tests/benchmarks/bench_store.py`` prints the cost.
"""
