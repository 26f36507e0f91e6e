"""Where checkpoints are kept, and what makes them whole: shards, then a manifest, then the index that names it.

Never imports airflow or SQLAlchemy: a task in a plain container uses it.
"""
