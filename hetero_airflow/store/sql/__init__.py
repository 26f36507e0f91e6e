"""The store in a SQL database: Airflow's metadata database, SQLite or PostgreSQL.

======================== ===========================================================================
``store.py``             `SqlStore`, the store's ports; each method is one transaction
``transaction.py``       transactions: the writers' lock, consistent reads, errors
``events.py``            records events; ``holds.py`` those about holds and health
``plan_commit.py``       commits a plan: grants leases, refuses requests, stores decisions
``device_ledger.py``     what is free on the devices of a plan
``leases.py``            renews and ends leases
``pruning.py``           deletes what is old: ended requests, lost workers
``reads.py``             reads snapshots, histories and runs; ``presence.py`` and ``queue.py`` the rest
``speeds.py``            the speeds that tasks report
``tallies.py``           counts of what happened, for metrics
``usage.py``             when devices were there, and sums of days of what devices and tasks used
``json_rows.py``         one statement for many rows
``worker_keys.py``       who may speak for a worker: enrolment and revocation of keys
``agent_messages.py``    records the messages of agents
======================== ===========================================================================

New statements work on all rows at once (``json_rows.py``) and run inside `write_transaction` or `read_transaction`.
"""
