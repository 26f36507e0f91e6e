"""What runs inside the task. Never imports airflow or SQLAlchemy, so it works in a plain container."""
