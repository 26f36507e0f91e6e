"""Device-aware scheduling for Apache Airflow 3.3: say what a task needs, get it, know why."""

__version__ = "0.1.0"
