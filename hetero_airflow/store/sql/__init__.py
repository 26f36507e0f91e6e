"""The store in a SQL database: Airflow's metadata database, SQLite or PostgreSQL.

New statements work on all rows at once (``json_rows.py``) and run inside `write_transaction` or `read_transaction`.
"""
